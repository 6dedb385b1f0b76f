# Fits a stationary Gaussian DPP to every pattern of a points CSV in the unit square by spatstat's minimum contrast,
# Palm likelihood and second-order composite likelihood; writes alpha = sqrt(2) sigma per pattern and method.
suppressMessages(library(spatstat))
arguments <- commandArgs(trailingOnly = TRUE)
points <- read.csv(arguments[1])
rows <- list()
for (pattern in unique(points$pattern)) {
  own <- points[points$pattern == pattern, ]
  X <- ppp(own$x, own$y, window = owin(c(0, 1), c(0, 1)))
  for (method in c("mincon", "palm", "clik2")) {
    fit <- tryCatch(suppressWarnings(dppm(X ~ 1, dppGauss, method = method)), error = function(e) NULL)
    alpha <- if (is.null(fit)) NA else unlist(parameters(fit))["alpha"]
    rows[[length(rows) + 1]] <- data.frame(pattern = pattern, method = method, alpha = alpha)
  }
}
write.csv(do.call(rbind, rows), arguments[2], row.names = FALSE)

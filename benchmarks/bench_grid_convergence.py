"""The paper's grid experiment: R-hat of 5 overdispersed chains by sampler, and agreement across samplers.

100 items, 100 sets, four parameters, default prior. Run: python benchmarks/bench_grid_convergence.py
"""

import numpy as np
from common import keep, paper_sets

import dpplearn as dpp

SAMPLERS = {
    "metropolis": (dpp.metropolis_sampler, 20_000),
    "slice": (dpp.slice_sampler, 4_000),
    "axes": (dpp.axes_sampler, 4_000),
    "random-direction": (dpp.random_direction_sampler, 16_000),
    "hyperrectangle": (dpp.hyperrectangle_sampler, 16_000),
}


def main() -> None:
    model = dpp.gaussian(paper_sets())
    result, logs = {}, {}
    for name, (sampler, draws) in SAMPLERS.items():
        fit = dpp.fit(model, seed=1, sampler=sampler(), chains=5, draws=draws, tune=1000)
        parameters = fit.summary["parameters"]
        r_hats = {key: p["r_hat"] for key, p in parameters.items()}
        columns = [fit.posterior[p].values[..., i].ravel() for p in ("gamma", "sigma") for i in range(2)]
        logs[name] = np.log(np.stack(columns))
        result[name] = {
            "draws": draws,
            "mean_r_hat": float(np.mean(list(r_hats.values()))),
            "r_hat": r_hats,
            "ess_bulk": {key: p["ess_bulk"] for key, p in parameters.items()},
            "draw_s": fit.summary["timing"]["draw_s"],
        }
    sd = np.std(logs["slice"], axis=1)
    numbers = {n: np.stack([v.mean(1), *np.quantile(v, [0.05, 0.95], axis=1)]) for n, v in logs.items()}
    largest = {n: float(np.max(np.abs(v - numbers["slice"]) / sd)) for n, v in numbers.items()}
    keep("grid_convergence", {"samplers": result, "largest_difference_from_slice_in_posterior_sd": largest})


if __name__ == "__main__":
    main()

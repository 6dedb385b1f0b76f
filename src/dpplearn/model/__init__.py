"""Models: the density (`density`), default priors (`priors`), named models (`build`), what derives (`derived`)."""

from dpplearn.model.build import Model, gaussian, stationary, uniform
from dpplearn.model.density import Problem, constrain, log_density, unconstrain

__all__ = ["Model", "Problem", "constrain", "gaussian", "log_density", "stationary", "unconstrain", "uniform"]

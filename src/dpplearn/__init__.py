"""Learn the parameters of determinantal point process kernels, with exact posteriors.

The public names in the order of the work: data, models of it, fits of the models, draws from kernels.
They load when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpplearn import datasets, kernels
    from dpplearn.data import PointPatterns, Subsets
    from dpplearn.domains import BaseSet, Box, RealSpace
    from dpplearn.errors import InputError
    from dpplearn.inference import Fit, fit
    from dpplearn.mcmc import (
        axes_sampler,
        hyperrectangle_sampler,
        metropolis_sampler,
        random_direction_sampler,
        slice_sampler,
    )
    from dpplearn.model import Model, gaussian, stationary, uniform
    from dpplearn.readers import read_items, read_points, read_subsets
    from dpplearn.simulate import simulate

__version__ = "0.1.0.dev0"

_HOME = {
    # data
    "read_points": "readers",
    "read_subsets": "readers",
    "read_items": "readers",
    "PointPatterns": "data",
    "Subsets": "data",
    "Box": "domains",
    "RealSpace": "domains",
    "BaseSet": "domains",
    "InputError": "errors",
    # models
    "stationary": "model",
    "gaussian": "model",
    "uniform": "model",
    "Model": "model",
    # fits
    "fit": "inference",
    "Fit": "inference",
    "slice_sampler": "mcmc",
    "axes_sampler": "mcmc",
    "random_direction_sampler": "mcmc",
    "hyperrectangle_sampler": "mcmc",
    "metropolis_sampler": "mcmc",
    # draws
    "simulate": "simulate",
}
_MODULES = ("kernels", "datasets")

__all__ = [
    "BaseSet",
    "Box",
    "Fit",
    "InputError",
    "Model",
    "PointPatterns",
    "RealSpace",
    "Subsets",
    "axes_sampler",
    "datasets",
    "fit",
    "gaussian",
    "hyperrectangle_sampler",
    "kernels",
    "metropolis_sampler",
    "random_direction_sampler",
    "read_items",
    "read_points",
    "read_subsets",
    "simulate",
    "slice_sampler",
    "stationary",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dpplearn.{name}")
    if name in _HOME:
        # `simulate` is a function in a module of its own name: the function is the public one
        value = getattr(import_module(f"dpplearn.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'dpplearn' has no attribute '{name}'")

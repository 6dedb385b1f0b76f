"""`Model` and the named models: a kernel built from parameters, priors, and the data as the likelihood wants them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution
from threadpoolctl import threadpool_limits

from dpplearn.data import PointPatterns, Subsets
from dpplearn.errors import InputError
from dpplearn.kernels import ContinuousGaussian, Gaussian, Stationary, Uniform
from dpplearn.model import priors as pr
from dpplearn.model.density import Observed, OnItems, OnRealSpace, Priors, Problem, dimension
from dpplearn.spectra import window

TWO_PI = 2 * np.pi


@dataclass(frozen=True)
class Model:
    """What is learned from what: `build_kernel(params)` under `priors` (name → NumPyro distribution), given `data`.

    `size` makes it a k-DPP. `build_kernel` should be a module-level function, so that it compiles once. The kernel
    decides the domain: Stationary and Uniform live on the windows of the data, ContinuousGaussian on R^D, any
    other kernel on the items of subsets.
    """

    build_kernel: Callable[[dict[str, Any]], Any]
    priors: Priors
    data: PointPatterns | Subsets
    size: int | None = None
    name: str = "custom"
    centers: np.ndarray | None = None
    starts: Mapping[str, Any] | None = None  # where chains start from, if not from the priors
    problem: Problem = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        check_size(self.data, self.size)
        # tables come from many small eigenproblems, on which BLAS threads only wait for each other
        with jax.enable_x64(True), threadpool_limits(limits=1):
            kernel = self.build_kernel(_example(self.priors))  # its type says where the model lives
            observed = _observe(kernel, self.data, self.centers, self.size)
            problem = Problem(dict(self.priors), jax.tree.map(jnp.asarray, observed), self.build_kernel, self.size)
        object.__setattr__(self, "problem", problem)

    @property
    def dimension(self) -> int:
        """How many numbers are learned."""
        return dimension(self.priors)


def _example(priors: Priors) -> dict[str, Any]:
    return {name: jnp.ones(pr.shape_of(prior)) for name, prior in priors.items()}


def _observe(kernel: Any, data: PointPatterns | Subsets, centers: np.ndarray | None, size: int | None) -> Observed:
    if isinstance(data, Subsets):
        if isinstance(kernel, Stationary | Uniform | ContinuousGaussian):
            raise InputError(f"{type(kernel).__name__} is a kernel for point patterns; the data are subsets of items")
        return OnItems(data.items, data.index)
    if isinstance(kernel, Stationary | Uniform):
        if data.windows is None:
            raise InputError("this model needs the windows the patterns were seen through: give --windows or window=")
        if isinstance(kernel, Stationary):
            return window.prepare_by_size(data)
        return window.prepare(data, with_functions=False, with_panels=size is None)
    if not isinstance(kernel, ContinuousGaussian):
        raise InputError("point patterns need one of the continuous kernels: Stationary, Uniform, ContinuousGaussian")
    shift = np.zeros((len(data), data.dim)) if centers is None else centers
    return OnRealSpace(np.where(data.mask[..., None], data.points - shift[:, None], 0.0), data.mask)


def check_size(data: PointPatterns | Subsets, size: int | None) -> None:
    """A k-DPP needs k ≥ 1 points in every set, and any model at least one point in all."""
    if size is not None:
        if size < 1:
            raise InputError(f"--size: expected at least 1, found {size}")
        wrong = np.flatnonzero(data.counts != size)
        if len(wrong):
            t = int(wrong[0])
            of, what = ("set", "items") if isinstance(data, Subsets) else ("pattern", "points")
            raise InputError(
                f"--size {size}: expected {size} {what} in every {of}, found {data.counts[t]} in {of} {data.names[t]!r}"
            )
        if isinstance(data, Subsets) and size > len(data.base):
            raise InputError(f"--size {size}: there are only {len(data.base)} items")
    if not data.counts.sum():
        raise InputError("no set holds a point: nothing can be learned")


# ------------------------------------------------------------------ the named models


def stationary(
    data: PointPatterns, *, priors: Mapping[str, Distribution] | None = None, prior_set: str = "default"
) -> Model:
    """A stationary Gaussian DPP seen through its windows: `intensity`, and `repulsion` from 0 (Poisson) to 1."""
    if isinstance(data, Subsets) or data.windows is None:
        raise InputError("model stationary: expected point patterns with known windows (--windows), found none")
    check_size(data, None)
    n, volume = _mean_count(data), _mean_volume(data)
    with jax.enable_x64(True):
        default: dict[str, Distribution] = {
            "intensity": pr.log_normal(n / volume, 0.5),
            "repulsion": dist.Uniform(0.0, 1.0),
        }
        chosen = _prior_choice(default, priors, prior_set)
        return Model(_stationary_kernel(data.dim), chosen, data, name="stationary", starts=default)


def gaussian(
    data: PointPatterns | Subsets,
    *,
    size: int | None = None,
    covariance: str = "diagonal",
    isotropic: bool = False,
    center: str | None = None,
    amplitude: str = "fixed",
    priors: Mapping[str, Distribution] | None = None,
    prior_set: str = "default",
) -> Model:
    """The paper's model: Gaussian quality and Gaussian similarity, on R^D (`alpha`, `rho`, `sigma`) or on items."""
    is_scalar = _is_scalar(covariance, isotropic)
    check_size(data, size)
    with jax.enable_x64(True):
        if isinstance(data, Subsets):
            if center is not None:
                raise InputError("--center: on items the quality's centre is the origin; leave the option out")
            default = _item_priors(data, is_scalar, True) | _amplitude_prior(data, size, amplitude)
            return Model(
                _item_kernel, _prior_choice(default, priors, prior_set), data, size, "gaussian", starts=default
            )
        if amplitude != "fixed":
            raise InputError("--amplitude is for items; on points alpha is always learned")
        centers = _centers(data, center)
        sets = data.arrays()
        s = pr.spread(sets, centers)
        pooled = float(np.sqrt(np.mean(s**2)))
        d = pr.median_neighbour_distance(sets, pooled / np.sqrt(max(_mean_count(data), 1.0)))
        shape = () if is_scalar else (data.dim,)
        default = {} if size is not None else {"alpha": pr.log_normal(4 * _mean_count(data), 2.0)}
        default |= {
            "rho": pr.log_normal(np.sqrt(2) * (pooled if is_scalar else s), 0.5),
            "sigma": pr.log_normal(np.full(shape, d), 1.0),
        }
        if center == "learn":
            default["mu"] = dist.Normal(centers[0], np.broadcast_to(pooled if is_scalar else s, (data.dim,)))
        chosen = _prior_choice(default, priors, prior_set)
        shift = None if center == "learn" else centers
        return Model(_continuous_kernel, chosen, data, size, "gaussian", shift, default)


def uniform(
    data: PointPatterns | Subsets,
    *,
    size: int | None = None,
    covariance: str = "diagonal",
    isotropic: bool = False,
    amplitude: str = "fixed",
    priors: Mapping[str, Distribution] | None = None,
    prior_set: str = "default",
) -> Model:
    """Gaussian similarity and uniform quality: on items (`sigma`), or living on windows (`alpha`, `sigma`)."""
    is_scalar = _is_scalar(covariance, isotropic)
    check_size(data, size)
    with jax.enable_x64(True):
        if isinstance(data, Subsets):
            default = _item_priors(data, is_scalar, False) | _amplitude_prior(data, size, amplitude)
            return Model(_item_kernel, _prior_choice(default, priors, prior_set), data, size, "uniform", starts=default)
        if amplitude != "fixed":
            raise InputError("--amplitude is for items; on points alpha is always learned")
        if data.windows is None:
            raise InputError("model uniform: expected point patterns with known windows (--windows), found none")
        sets = data.arrays()
        s = pr.spread(sets, np.stack([box.center for box in data.windows]))
        d = pr.median_neighbour_distance(sets, float(np.sqrt(np.mean(s**2) / max(_mean_count(data), 1.0))))
        default = {} if size is not None else {"alpha": pr.log_normal(4 * _mean_count(data) / _mean_volume(data), 2.0)}
        default["sigma"] = pr.log_normal(np.full(() if is_scalar else (data.dim,), d), 1.0)
        return Model(_uniform_kernel, _prior_choice(default, priors, prior_set), data, size, "uniform", starts=default)


def _is_scalar(covariance: str, isotropic: bool) -> bool:
    if covariance not in ("isotropic", "diagonal"):
        raise InputError(f"--covariance: expected isotropic or diagonal, found {covariance}")
    return isotropic or covariance == "isotropic"


def _prior_choice(
    default: dict[str, Distribution], priors: Mapping[str, Distribution] | None, prior_set: str
) -> Priors:
    if prior_set not in ("default", "paper"):
        raise InputError(f"--prior-set: expected default or paper, found {prior_set}")
    return pr.with_overrides(pr.paper_priors(default) if prior_set == "paper" else default, priors)


def _mean_count(data: PointPatterns | Subsets) -> float:
    return float(np.mean(data.counts))


def _mean_volume(data: PointPatterns) -> float:
    return float(np.mean([box.volume for box in data.windows or ()]))


def _centers(data: PointPatterns, center: str | None) -> np.ndarray:
    """What is subtracted from each pattern: its window's centre, one pooled centroid, or nothing.

    A centre that is learned has its prior at the centroid.
    """
    center = center or ("centroid" if data.windows is None else "window")
    if center == "window":
        if data.windows is None:
            raise InputError("--center window: expected known windows (--windows), found none")
        return np.stack([box.center for box in data.windows])
    if center not in ("origin", "centroid", "learn"):
        raise InputError(f"--center: expected origin, centroid, window or learn, found {center}")
    middle = np.zeros(data.dim) if center == "origin" else pooled_centroid(data)
    return np.tile(middle, (len(data), 1))


def pooled_centroid(data: PointPatterns) -> np.ndarray:
    """The mean of all points of all patterns."""
    return np.mean(data.points[data.mask], axis=0)


def _item_priors(data: Subsets, is_scalar: bool, with_quality: bool) -> dict[str, Distribution]:
    sets = [data.items[row[row >= 0]] for row in data.index]
    s = pr.spread(sets, np.zeros((len(sets), data.base.dim)))
    pooled = float(np.sqrt(np.mean(s**2)))
    d = pr.median_neighbour_distance(sets, pooled / np.sqrt(max(_mean_count(data), 1.0)))
    shape = () if is_scalar else (data.base.dim,)
    quality = {"gamma": pr.log_normal(2 * (pooled if is_scalar else s) ** 2, 1.0)} if with_quality else {}
    return quality | {"sigma": pr.log_normal(np.full(shape, d**2), 2.0)}


def _amplitude_prior(data: Subsets, size: int | None, amplitude: str) -> dict[str, Distribution]:
    if amplitude not in ("fixed", "learn"):
        raise InputError(f"--amplitude: expected fixed or learn, found {amplitude}")
    if amplitude == "fixed":
        return {}
    if size is not None:
        raise InputError("--amplitude learn with --size: the amplitude cancels in a k-DPP")
    return {"alpha": pr.log_normal(4 * _mean_count(data) / len(data.base), 2.0)}


def _item_kernel(params: dict[str, Any]) -> Gaussian:
    return Gaussian(sigma=params["sigma"], gamma=params.get("gamma"), alpha=params.get("alpha", 1.0))


def _continuous_kernel(params: dict[str, Any]) -> ContinuousGaussian:
    return ContinuousGaussian(
        alpha=params.get("alpha", 1.0), rho=params["rho"], sigma=params["sigma"], center=params.get("mu", 0.0)
    )


def _uniform_kernel(params: dict[str, Any]) -> Uniform:
    return Uniform(alpha=params.get("alpha", 1.0), sigma=params["sigma"])


@cache
def _stationary_kernel(dim: int) -> Callable[[dict[str, Any]], Stationary]:
    def build(params: dict[str, Any]) -> Stationary:
        intensity = params["intensity"]
        return Stationary(intensity=intensity, sigma=stationary_sigma(intensity, params["repulsion"], dim))

    return build


def stationary_sigma(intensity: Any, repulsion: Any, dim: int) -> Any:
    """σ from u = λ(2πσ²)^(D/2)."""
    return (repulsion / intensity) ** (1 / dim) / TWO_PI**0.5

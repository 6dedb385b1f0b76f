"""Default priors: weakly informative, on the data's own scale, computed once from the data and then frozen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from jaxtyping import Float
from numpyro.distributions import Distribution
from scipy.spatial import KDTree

from dpplearn.errors import InputError


def median_neighbour_distance(sets: list[Float[np.ndarray, "_ D"]], fallback: float) -> float:
    """d, the median distance to the nearest neighbour within the observed sets.

    Never among the items of a base set: what matters is how close observed points come. `fallback` where no set
    has two points.
    """
    distances = [KDTree(points).query(points, k=2)[0][:, 1] for points in sets if len(points) > 1]
    median = float(np.median(np.concatenate(distances))) if distances else 0.0
    return median if median > 0 else fallback


def spread(sets: list[Float[np.ndarray, "_ D"]], centers: Float[np.ndarray, "T D"]) -> Float[np.ndarray, " D"]:
    """s_d, the standard deviation of the observed points about their centres, per dimension."""
    deviations = np.concatenate([points - center for points, center in zip(sets, centers, strict=True)])
    if not len(deviations):
        raise InputError("no set holds a point: nothing can be learned, and default priors have no scale")
    s = np.sqrt(np.mean(deviations**2, axis=0))
    return np.where(s > 0, s, np.max(s) if np.max(s) > 0 else 1.0)


def log_normal(median: float | np.ndarray, sd: float) -> Distribution:
    """LogNormal by its median."""
    return dist.LogNormal(np.log(median), sd * np.ones_like(median))


def with_overrides(priors: dict[str, Distribution], overrides: Mapping[str, Distribution] | None) -> dict[str, Any]:
    """Priors with a user's: NAME for every component of a parameter, `NAME[i]` for one of them."""
    result: dict[str, Any] = dict(priors)
    overrides = overrides or {}
    for key in sorted(overrides, key=lambda k: "[" in k):
        name, _, index = key.partition("[")
        if name not in result:
            raise InputError(f"prior {key}: expected one of {', '.join(_flat_all(priors))}, found {key}")
        prior, shape = overrides[key], shape_of(priors[name])
        if prior.event_shape or prior.batch_shape not in ((), shape):
            raise InputError(f"prior {key}: expected a distribution of one number")
        if not index:
            result[name] = prior.expand(shape) if shape else prior
            continue
        i = int(index[:-1]) if index[:-1].isdigit() else -1
        if not shape or not 0 <= i < shape[0]:
            raise InputError(f"prior {key}: expected one of {', '.join(_flat_all(priors))}, found {key}")
        current = result[name]
        parts = list(current) if isinstance(current, tuple) else [_component(current, j) for j in range(shape[0])]
        parts[i] = prior
        result[name] = tuple(parts)
    return result


def paper_priors(priors: dict[str, Distribution]) -> dict[str, Distribution]:
    """The paper's InverseGamma(0.001, 0.001) on alpha, rho, sigma and gamma (E9 says what it does)."""
    paper = {}
    for name, prior in priors.items():
        if name in ("alpha", "rho", "sigma", "gamma"):
            paper[name] = dist.InverseGamma(np.full(prior.batch_shape, 0.001), np.full(prior.batch_shape, 0.001))
        else:
            paper[name] = prior
    return paper


def flat_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """`sigma` for a scalar, `sigma[0]`, `sigma[1]` … for a vector."""
    return [f"{name}[{i}]" for i in range(shape[0])] if shape else [name]


def flat_priors(priors: Mapping[str, Any]) -> dict[str, Distribution]:
    """One scalar prior per flat name."""
    flat = {}
    for name, prior in priors.items():
        names = flat_names(name, shape_of(prior))
        parts = prior if isinstance(prior, tuple) else [_component(prior, i) for i in range(len(names))]
        flat |= dict(zip(names, parts, strict=True))
    return flat


def _flat_all(priors: Mapping[str, Any]) -> list[str]:
    return [flat for name, prior in priors.items() for flat in flat_names(name, shape_of(prior))]


def shape_of(prior: Any) -> tuple[int, ...]:
    return (len(prior),) if isinstance(prior, tuple) else tuple(prior.batch_shape)


def _component(prior: Distribution, i: int) -> Distribution:
    if not prior.batch_shape:
        return prior
    base = prior.base_dist if isinstance(prior, dist.ExpandedDistribution) else prior
    parameters = {name: getattr(base, name) for name in base.arg_constraints}
    return type(base)(**{name: v[i] if np.ndim(v) else v for name, v in parameters.items()})

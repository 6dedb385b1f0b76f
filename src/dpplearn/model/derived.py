"""Quantities derived from each draw: repulsion, regularity, expected size, intensity, range; and moments.

Everything takes parameters with a leading axis of draws and returns arrays with that axis.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special

from dpplearn.data import PointPatterns, Subsets
from dpplearn.kernels import ContinuousGaussian, Uniform
from dpplearn.model.build import Model, pooled_centroid, stationary_sigma
from dpplearn.model.density import OnItems
from dpplearn.normalizer import l_matrix
from dpplearn.spectra import real_space, window
from dpplearn.spectra.interval import interval_modes

Draws = dict[str, np.ndarray]
TRACES_PER_BASE = 500  # item models on larger base sets derive sizes from so many draws at most


class Sizes(NamedTuple):
    """E|A| and Var|A| per draw and pattern."""

    mean: Float[np.ndarray, "S T"]
    variance: Float[np.ndarray, "S T"]


def derive(model: Model, draws: Draws) -> Draws:
    """The derived quantities of each draw by name; what means nothing for the model is left out."""
    if model.name == "stationary":
        return _derive_stationary(model, draws)
    result: Draws = {}
    if model.name == "gaussian":
        sigma = draws["sigma"]
        scale = draws["gamma"] if "gamma" in draws else draws["rho"]
        result["repulsion"] = np.sqrt(sigma / scale) if "gamma" in draws else sigma / scale
    if model.name == "uniform" and isinstance(model.data, PointPatterns):
        result |= _derive_uniform(model, draws)
    # a kernel of the user's own has sizes on items, where they follow from its matrix alone
    if model.size is None and (model.name != "custom" or isinstance(model.data, Subsets)):
        sizes = expected_sizes(model, draws)
        if sizes is not None:
            result["regularity"] = 1 - np.sum(sizes.variance, 1) / np.sum(sizes.mean, 1)
            result["expected_size"] = np.mean(sizes.mean, axis=1)
    return result


def _derive_stationary(model: Model, draws: Draws) -> Draws:
    assert isinstance(model.data, PointPatterns)
    sigma = stationary_sigma(draws["intensity"], draws["repulsion"], model.data.dim)
    volume = np.mean([box.volume for box in model.data.windows or ()])
    return {
        "sigma": sigma,
        "range": sigma * np.sqrt(np.log(20)),
        "regularity": draws["repulsion"] * 2 ** (-model.data.dim / 2),
        "expected_size": draws["intensity"] * volume,
    }


def _derive_uniform(model: Model, draws: Draws) -> Draws:
    assert isinstance(model.data, PointPatterns)
    dim, sigma = model.data.dim, draws["sigma"]
    lengths = sigma if sigma.ndim > 1 else np.repeat(sigma[:, None], dim, axis=1)
    if model.size is not None:
        # a k-DPP has no interior intensity of its own: the points per area of its window stand in
        intensity = np.full(len(sigma), model.size / np.mean([box.volume for box in model.data.windows or ()]))
        return {"repulsion": (sigma.T * intensity ** (1 / dim)).T}
    strength = draws["alpha"] * np.prod(np.sqrt(2 * np.pi) * lengths, axis=1)
    intensity = interior_occupation(strength, dim) / np.prod(np.sqrt(2 * np.pi) * lengths, axis=1)
    reach = pair_correlation_range(strength, dim)
    return {
        "intensity": intensity,
        "range": (sigma.T * reach).T,
        "repulsion": (sigma.T * intensity ** (1 / dim)).T,
    }


def interior_occupation(strength: Float[np.ndarray, " S"], dim: int) -> Float[np.ndarray, " S"]:
    """-Li_{D/2}(-v): the interior intensity of the L-model on a box times (2πσ²)^(D/2), v its strength (27)."""
    k, weight = _radial_nodes(dim)
    phi = strength[:, None] * np.exp(-(k**2) / 2)
    return (phi / (1 + phi)) @ weight


def pair_correlation_range(strength: Float[np.ndarray, " S"], dim: int) -> Float[np.ndarray, " S"]:
    """r/σ where 1 - (K(r)/K(0))² reaches .95, K the interior marginal kernel of the L-model."""
    log_v, reach = _range_table(dim)
    return np.interp(np.log(strength), log_v, reach)


@lru_cache(maxsize=8)
def _radial_nodes(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of ∫ f(|k|) dk / (2π)^(D/2), for f that falls off like exp(-k²/2)."""
    t, w = np.polynomial.legendre.leggauss(400)
    k, w = (t + 1) * 8, w * 8
    surface = 2 * np.pi ** (dim / 2) / special.gamma(dim / 2)
    return k, w * surface * k ** (dim - 1) / (2 * np.pi) ** (dim / 2)


@lru_cache(maxsize=8)
def _range_table(dim: int) -> tuple[np.ndarray, np.ndarray]:
    log_v, r = np.linspace(np.log(1e-6), np.log(1e8), 600), np.linspace(0.0, 12.0, 2401)
    k, weight = _radial_nodes(dim)
    order, x = dim / 2 - 1, np.outer(r, k)
    with np.errstate(divide="ignore", invalid="ignore"):
        wave = np.where(x > 0, special.gamma(dim / 2) * special.jv(order, x) / (x / 2) ** order, 1.0)
    reach = []
    for v in np.exp(log_v):
        phi = v * np.exp(-(k**2) / 2)
        kernel = wave @ (weight * phi / (1 + phi))
        last = np.flatnonzero((kernel / kernel[0]) ** 2 > 0.05)
        # the first crossing: what lies within it counts as repelled
        first = int(np.argmin((kernel / kernel[0]) ** 2 > 0.05)) if len(last) else 0
        a, b = ((kernel[i] / kernel[0]) ** 2 for i in (first - 1, first))
        reach.append(r[first - 1] + (a - 0.05) / (a - b) * (r[first] - r[first - 1]))
    return log_v, np.array(reach)


# ------------------------------------------------------------------ sizes and moments


def expected_sizes(model: Model, draws: Draws) -> Sizes | None:
    """E|A| and Var|A| per draw and pattern; None for a k-DPP and for models without a named form."""
    if model.size is not None:
        return None
    if model.name == "stationary":
        return _stationary_sizes(model, draws)
    if isinstance(model.problem.observed, OnItems):
        occupation = item_moments(model, draws)
        return Sizes(occupation["mean"][:, None], occupation["variance"][:, None])
    per_draw = {name: draws[name] for name in model.priors}
    observed = model.problem.observed
    if isinstance(observed, window.Windowed):

        def on_windows(params):
            return window.uniform_sizes(Uniform(alpha=params["alpha"], sigma=params["sigma"]), observed)

        mean, variance = _over_draws(on_windows, per_draw)
        return Sizes(mean[:, observed.which], variance[:, observed.which])

    dim = model.data.dim if isinstance(model.data, PointPatterns) else 0

    def on_real_space(params):
        kernel = ContinuousGaussian(alpha=params["alpha"], rho=params["rho"], sigma=params["sigma"])
        return real_space.expected_size(kernel, dim)

    mean, variance = _over_draws(on_real_space, per_draw)
    return Sizes(mean[:, None], variance[:, None])


def _stationary_sizes(model: Model, draws: Draws) -> Sizes:
    """E = λ|W|, Var = λ|W| - ∫∫K²: the double integral of exp(-(x-y)²/σ²) over a side is closed."""
    assert isinstance(model.data, PointPatterns)
    sides = np.stack([box.lengths for box in model.data.windows or ()])
    intensity = draws["intensity"][:, None]
    sigma = stationary_sigma(draws["intensity"], draws["repulsion"], model.data.dim)[:, None, None]
    t = sides / sigma
    squared = sigma**2 * (np.sqrt(np.pi) * t * special.erf(t) + np.expm1(-(t**2)))
    mean = intensity * np.prod(sides, axis=1)
    return Sizes(mean, mean - intensity**2 * np.prod(squared, axis=2))


def item_moments(model: Model, draws: Draws) -> Draws:
    """E|A|, Var|A| and E Σ x_d² of a DPP on items from K = L(I+L)⁻¹; on large base sets of evenly spaced draws only."""
    assert isinstance(model.data, Subsets)
    items = jnp.asarray(model.data.items)
    n_draws = len(next(iter(draws.values())))
    most = TRACES_PER_BASE if len(items) > TRACES_PER_BASE else n_draws
    chosen = np.unique(np.linspace(0, n_draws - 1, min(most, n_draws)).astype(int))

    def one(params):
        matrix = l_matrix(model.build_kernel(params), items)
        marginal = jnp.eye(len(items)) - jnp.linalg.inv(jnp.eye(len(items)) + matrix)
        inclusion = jnp.diagonal(marginal)
        return jnp.sum(inclusion), jnp.sum(inclusion) - jnp.sum(marginal**2), inclusion @ items**2

    values = _over_draws(one, {name: draws[name][chosen] for name in model.priors})
    full = [np.full((n_draws, *v.shape[1:]), np.nan) for v in values]
    for target, value in zip(full, values, strict=True):
        target[chosen] = value
    return dict(zip(("mean", "variance", "second"), full, strict=True))


def moments(model: Model, draws: Draws) -> dict[str, Any] | None:
    """The zeroth and second moments each draw predicts beside what was observed, where they mean something."""
    if model.size is not None or model.name == "custom":
        return None
    data = model.data
    if isinstance(data, Subsets):
        predicted = item_moments(model, draws)
        sets = [data.items[row[row >= 0]] for row in data.index]
        keep = np.isfinite(predicted["mean"])
        zeroth, second = predicted["mean"][keep], predicted["second"][keep]
    else:
        sizes = expected_sizes(model, draws)
        assert sizes is not None
        sets = [points - center for points, center in zip(data.arrays(), _moment_centers(model, data), strict=True)]
        zeroth, second = np.mean(sizes.mean, axis=1), _second_moments(model, draws)
    names = ["E|A|"] + [f"E Σ{'xyz'[d] if second.shape[1] <= 3 else f'x{d}'}²" for d in range(second.shape[1])]
    observed = [np.array([len(x) for x in sets], float)] + [
        np.array([np.sum(x[:, d] ** 2) for x in sets]) for d in range(second.shape[1])
    ]
    result: dict[str, Any] = {"names": names}
    for name, values, seen in zip(names, [zeroth, *second.T], observed, strict=True):
        error = float(np.std(seen, ddof=1) / np.sqrt(len(seen))) if len(seen) > 1 else float("nan")
        result[name] = {"predicted": values, "observed": float(np.mean(seen)), "observed_se": error}
    return result


def _moment_centers(model: Model, data: PointPatterns) -> Float[np.ndarray, "T D"]:
    """What second moments are taken about: the model's own centres, or the centroid where it learns one."""
    if model.centers is not None:
        return model.centers
    if "mu" in model.priors:
        return np.tile(pooled_centroid(data), (len(data), 1))
    return np.stack([box.center for box in data.windows or ()])


def _second_moments(model: Model, draws: Draws) -> Float[np.ndarray, "S D"]:
    assert isinstance(model.data, PointPatterns)
    observed, dim = model.problem.observed, model.data.dim
    if model.name == "stationary":
        sides = np.stack([box.lengths for box in model.data.windows or ()])
        return draws["intensity"][:, None] * np.mean(np.prod(sides, 1)[:, None] * sides**2 / 12, axis=0)
    if isinstance(observed, window.Windowed):
        return np.stack(
            [_uniform_second(draws["alpha"][s], draws["sigma"][s], observed) for s in range(len(draws["alpha"]))]
        )

    about = pooled_centroid(model.data)

    def one(params):
        # E Σ x_d² = Σ p_n ρ²/(2β²) (2 n_d + 1), and Σ p_n n_d is the derivative of log Z in log r_d (22)
        kernel = ContinuousGaussian(alpha=params["alpha"], rho=params["rho"], sigma=params["sigma"])
        spec = real_space.spectrum(kernel, dim)

        def log_z(log_top, log_ratio):
            return real_space.log_fredholm(jnp.ones(1), spec._replace(log_top=log_top, log_ratio=log_ratio))[0]

        size, degrees = jax.grad(log_z, argnums=(0, 1))(spec.log_top, spec.log_ratio)
        repeats = dim // len(spec.log_ratio)
        beta2 = jnp.sqrt(1 + 2 * jnp.atleast_1d(params["rho"] / params["sigma"]) ** 2)
        own = jnp.atleast_1d(params["rho"]) ** 2 / (2 * beta2) * (2 * degrees / repeats + size)
        offset = params["mu"] - about if "mu" in params else 0.0  # by the parallel axis theorem
        return jnp.broadcast_to(own, (dim,)) + size * offset**2

    return _over_draws(one, {name: draws[name] for name in model.priors})


def _uniform_second(alpha: float, sigma: Any, windowed: window.Windowed) -> Float[np.ndarray, " D"]:
    """E Σ (x_d - c_d)² of the L-model on its windows, a mean over patterns: Σ p_n ∫(x_d - c_d)² φ_n²."""
    sides = np.asarray(windowed.sides)
    lengths = np.broadcast_to(sigma, (sides.shape[1],))
    per_window = []
    for side in sides:
        modes = [
            interval_modes(float(np.clip(s / length, 2e-3, 50.0))) for s, length in zip(lengths, side, strict=True)
        ]
        modes = [
            (m.eigenvalues * length, (length * (m.nodes - 0.5)) ** 2 @ m.vectors**2)
            for m, length in zip(modes, side, strict=True)
        ]
        keep = [e > 1e-12 * e[0] for e, _ in modes]
        grids = np.meshgrid(*[e[k] for (e, _), k in zip(modes, keep, strict=True)], indexing="ij")
        scaled = alpha * np.prod(grids, axis=0)
        p = scaled / (1 + scaled)
        axes = range(len(side))
        per_window.append([p.sum(axis=tuple(a for a in axes if a != d)) @ modes[d][1][keep[d]] for d in axes])
    return np.mean(np.array(per_window)[np.asarray(windowed.which)], axis=0)


def _over_draws(function: Callable[[dict[str, Any]], Any], draws: Draws) -> Any:
    """function(params) of each draw, in one compiled loop."""
    with jax.enable_x64(True):
        result = jax.jit(lambda d: jax.lax.map(function, d))({k: jnp.asarray(v) for k, v in draws.items()})
        return jax.tree.map(np.asarray, result)


def thin(draws: Draws, most: int) -> Draws:
    """At most `most` evenly spaced draws."""
    n = len(next(iter(draws.values())))
    chosen = np.unique(np.linspace(0, n - 1, min(most, n)).astype(int))
    return {name: values[chosen] for name, values in draws.items()}

"""Exact draws: DPPs and k-DPPs on items, of the Gaussian kernel on R^D, and of the models on boxes.

Every draw has two steps. First a random set of eigenfunctions: the n-th with probability λ_n/(1+λ_n), for a
k-DPP given that there are k of them. Then the points of the projection onto these, one after the other: x has
density ‖v⊥(x)‖²/(points to come), v(x) the chosen eigenfunctions at x and v⊥ its part orthogonal to the v of
the points so far. The draws are exact to round-off, with one approximation that no sample can show: modes whose
total expected count is under DROPPED of the expected size are left out (under MOST_DROPPED on a box so small
against σ that round-off hides the rest; what would need those is refused).
"""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32
from scipy.optimize import root_scalar
from scipy.special import expit, logsumexp

from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box, RealSpace
from dpplearn.errors import InputError
from dpplearn.kernels import ContinuousGaussian, Stationary, Uniform, as_kernel, log_qualities, similarity_matrix
from dpplearn.spectra import real_space
from dpplearn.spectra.interval import interval_modes

DROPPED = 1e-10  # the dropped modes' expected count is at most this part of the expected size
MOST_DROPPED = 1e-7  # the same where round-off hides modes of a box; beyond it the draw is refused
HIDDEN = float(np.log(1e13))  # one-dimensional eigenvalues on a box are known down to exp(-HIDDEN) of the largest
MOST_MODES = 10_000_000
MOST_BOUNDS = 40_000_000  # entries of a table of bounds
LONGEST = 1000  # side of a box in units of σ; the eigenproblem grows with it
LARGEST_BLOCK = 1024  # proposals at a time


def simulate(
    rng_key: Key[Array, ""] | UInt32[Array, "_"] | UInt32[np.ndarray, "_"],
    kernel: Any,
    domain_or_items: RealSpace | Box | BaseSet | Array | np.ndarray,
    sets: int,
    size: int | None = None,
) -> PointPatterns | Subsets:
    """Draw `sets` independent sets from the DPP of `kernel`, or from its k-DPP where `size` is k; exact.

    `ContinuousGaussian` lives on a `RealSpace`, `Stationary` and `Uniform` on a `Box`, and every other kernel
    (a plain function L(x, y) too) on items, one row of coordinates each.
    """
    if sets < 1 or (size is not None and size < 1):
        raise InputError(f"expected at least one set of at least one point, found sets={sets}, size={size}")
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        rng_key = jax.random.key_data(rng_key)
    rng = np.random.default_rng(np.asarray(rng_key))
    with jax.enable_x64(True):
        if isinstance(domain_or_items, Box):
            process = _on_box(kernel, domain_or_items, size)
            return PointPatterns.from_arrays(_draw_patterns(rng, process, sets, size), window=domain_or_items)
        if isinstance(domain_or_items, RealSpace):
            process = _on_real_space(kernel, domain_or_items.dim, size)
            return PointPatterns.from_arrays(_draw_patterns(rng, process, sets, size))
        is_base = isinstance(domain_or_items, BaseSet)
        items = domain_or_items.items if is_base else np.asarray(domain_or_items, np.float64)
        return Subsets.from_lists(_draw_subsets(rng, kernel, items, sets, size), domain_or_items if is_base else items)


# ------------------------------------------------------------------ which eigenfunctions


def _choose_modes(
    rng: np.random.Generator, log_odds: Float[np.ndarray, " M"], sets: int, size: int | None
) -> list[Int[np.ndarray, "_"]]:
    """Per set the chosen modes: independent with odds λ, for a k-DPP given that there are `size`.

    Given their number the modes have the same law for all odds R·λ, so R is set such that `size` are expected,
    and trials are repeated until one has that many: about √(2π·size) trials at most, and no e_k at all.
    """
    p = expit(log_odds if size is None else log_odds + _log_tilt(log_odds, size))
    chosen = []
    while len(chosen) < sets:
        trial = np.flatnonzero(rng.random(len(p)) < p)
        if size is None or len(trial) == size:
            chosen.append(trial)
    return chosen


def _log_tilt(log_odds: Float[np.ndarray, " M"], size: int) -> float:
    """log R with Σ Rλ/(1+Rλ) = size, less 0.01 so that it exists where there are just `size` modes."""
    low = np.log(size) - logsumexp(log_odds) - 1  # Σ Rλ is already below the size
    high = np.log(200 * size) - np.partition(log_odds, -size)[-size]  # the `size` largest suffice
    return root_scalar(lambda x: np.sum(expit(x + log_odds)) - size + 0.01, bracket=(low, high), xtol=1e-4).root


# ------------------------------------------------------------------ items


def _draw_subsets(rng: np.random.Generator, kernel: Any, items: np.ndarray, sets: int, size: int | None):
    if items.ndim != 2 or not items.size or not np.isfinite(items).all():
        raise InputError(f"items: expected finite numbers of shape (items, coordinates), found shape {items.shape}")
    if isinstance(kernel, Stationary):
        raise InputError("a Stationary kernel lives on a window: expected a Box, found items")
    eigenvalues, vectors = np.linalg.eigh(_item_kernel(kernel, items))
    round_off = len(items) * np.finfo(float).eps * np.abs(eigenvalues).max()
    if eigenvalues[0] < -10 * round_off:
        raise InputError(f"the kernel is not positive semi-definite on these items: eigenvalue {eigenvalues[0]:.3g}")
    rank = int(np.sum(eigenvalues > round_off))
    if size is not None and size > rank:
        raise InputError(f"size {size}: sets of more than {rank} of these items have probability 0, the kernel's rank")
    positive = np.flatnonzero(eigenvalues > 0)
    chosen = _choose_modes(rng, np.log(eigenvalues[positive]), sets, size)
    return [sorted(_project_items(rng, vectors[:, positive[modes]]).tolist()) for modes in chosen]


def _item_kernel(kernel: Any, items: np.ndarray) -> Float[np.ndarray, "N N"]:
    kernel = as_kernel(kernel)
    if jax.tree_util.all_leaves([kernel]):  # an object that JAX does not know as a pytree cannot be an argument
        qualities, matrix = jax.jit(partial(_quality_and_similarity, kernel))(items)
    else:
        _check_scales(kernel, items.shape[1])
        qualities, matrix = jax.jit(_quality_and_similarity)(kernel, items)
    q = np.exp(np.asarray(qualities))
    matrix = q[:, None] * np.asarray(matrix) * q
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-10, atol=0):
        raise InputError("the kernel is not finite, symmetric and of positive quality on these items")
    return matrix


def _quality_and_similarity(kernel: Any, items: Array) -> tuple[Array, Array]:
    return log_qualities(kernel, items), similarity_matrix(kernel, items)


def _project_items(rng: np.random.Generator, vectors: Float[np.ndarray, "N n"]) -> Int[np.ndarray, " n"]:
    """One draw of the projection DPP with kernel V Vᵀ, orthonormal columns: O(N n²)."""
    size = vectors.shape[1]
    items, basis = np.empty(size, int), np.empty((size, size))
    residual = np.sum(vectors**2, axis=1)
    for i in range(size):
        cumulative = np.cumsum(residual)
        items[i] = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        basis[i] = _orthogonal_direction(vectors[items[i]], basis[:i])
        residual = np.maximum(residual - (vectors @ basis[i]) ** 2, 0)  # negative by round-off only
        residual[items[i]] = 0
    return items


def _orthogonal_direction(v: Float[np.ndarray, " n"], basis: Float[np.ndarray, "i n"]) -> Float[np.ndarray, " n"]:
    """The direction of the part of v orthogonal to the rows of the basis; twice, so that round-off cannot grow."""
    for _ in range(2):
        v = v - (basis @ v) @ basis
    return v / np.linalg.norm(v)


# ------------------------------------------------------------------ separable continuous models: their modes


class _Product(NamedTuple):
    """Eigenvalues exp(log_top - Σ_d cost_d[n_d]) of a product operator; costs start at 0 and do not decrease."""

    log_top: float
    up_to: Callable[[float], list[np.ndarray]]  # per dimension, the costs up to a limit
    log_sum: Callable[[float], float]  # Σ_d log Σ_n exp(-t cost_d[n])
    hidden: float  # costs above this are not known


class _Process(NamedTuple):
    """What a pattern is drawn from: modes ∏_d f_{n_d}(z_d) with their odds, and x = origin + unit·z."""

    log_odds: Float[np.ndarray, " M"]
    degrees: Int[np.ndarray, "M D"]
    axis: Callable[[int, int], "_Axis"]  # (dimension, number of functions)
    origin: Float[np.ndarray, " D"]
    unit: Float[np.ndarray, " D"]


def _on_real_space(kernel: Any, dim: int, size: int | None) -> _Process:
    if not isinstance(kernel, ContinuousGaussian):
        raise InputError(f"on R^{dim}: expected a ContinuousGaussian kernel, found {type(kernel).__name__}")
    _check_scales(kernel, dim)
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), kernel)
    spectrum = real_space.spectrum(kernel, dim)
    step = -np.broadcast_to(np.asarray(spectrum.log_ratio), (dim,))
    product = _Product(
        log_top=float(spectrum.log_top),
        up_to=lambda limit: [w * np.arange(min(limit / w, MOST_MODES) + 1) for w in step],
        log_sum=lambda t: -float(np.sum(np.log(-np.expm1(-t * step)))),
        hidden=np.inf,
    )
    degrees, log_odds = _strong_modes(product, size)
    rho, sigma, center = (np.broadcast_to(np.asarray(v), (dim,)) for v in (kernel.rho, kernel.sigma, kernel.center))
    unit = rho / (1 + 2 * (rho / sigma) ** 2) ** 0.25

    def axis(_: int, count: int) -> _Axis:
        # few shapes: each is compiled once
        return _hermite_axis(next(n for i in range(3, 64) for n in (2**i, 3 * 2 ** (i - 1)) if n >= count))

    return _Process(log_odds, degrees, axis, center, unit)


def _on_box(kernel: Any, box: Box, size: int | None) -> _Process:
    if not isinstance(kernel, Stationary | Uniform):
        raise InputError(f"on a Box: expected a Stationary or Uniform kernel, found {type(kernel).__name__}")
    _check_scales(kernel, box.dim)
    sigma = np.broadcast_to(np.asarray(kernel.sigma, float), (box.dim,))
    if (box.lengths > LONGEST * sigma).any():
        raise InputError(f"sigma: expected at least 1/{LONGEST} of each side {box.lengths}, found {sigma}")
    modes = [interval_modes(float(s)) for s in sigma / box.lengths]
    costs = [_interval_costs(m.eigenvalues) for m in modes]
    log_top = float(np.sum(np.log([m.eigenvalues[0] for m in modes])) + np.log(box.volume))
    product = _Product(
        log_top=log_top + float(np.log(kernel.intensity if isinstance(kernel, Stationary) else kernel.alpha)),
        up_to=lambda limit: [c[c <= limit] for c in costs],
        log_sum=lambda t: sum(float(np.log(np.sum(np.exp(-t * c)))) for c in costs),
        hidden=HIDDEN,
    )
    if isinstance(kernel, Stationary):
        _check_exists(kernel, sigma, size)
    degrees, log_odds = _strong_modes(product, size)
    if isinstance(kernel, Stationary):  # the eigenvalues are those of K: probabilities, not odds
        log_odds = log_odds - np.log(-np.expm1(log_odds))
    return _Process(
        log_odds, degrees, lambda d, count: _interval_axis(modes[d].s, count), np.array(box.lower), box.lengths
    )


def _interval_costs(eigenvalues: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
    """log e_0/e_n. Its steps grow with n, so where round-off hides it equal steps bound it from below."""
    costs = np.log(eigenvalues[0] / eigenvalues[eigenvalues > eigenvalues[0] * np.exp(-HIDDEN)])
    middle = (len(costs) - 1) // 2
    step = (costs[-1] - costs[middle]) / (len(costs) - 1 - middle) if len(costs) > 1 else HIDDEN
    return np.append(np.maximum.accumulate(costs), costs[-1] + step * np.arange(1, 200 / step + 2))


def _check_exists(kernel: Stationary, sigma: Float[np.ndarray, " D"], size: int | None) -> None:
    repulsion = float(kernel.intensity * np.prod(np.sqrt(2 * np.pi) * sigma))
    if repulsion > 1 + 1e-9:
        raise InputError(f"the stationary model exists for a repulsion of at most 1, found {repulsion:.6g}")
    if size is not None:
        raise InputError(f"the stationary model has no fixed size: expected size=None, found {size}")


def _check_scales(kernel: Any, dim: int) -> None:
    """Amplitudes and lengths are positive numbers, one or one per dimension."""
    for name in ("alpha", "intensity", "rho", "gamma", "sigma", "center"):
        value = getattr(kernel, name, None)
        if value is None:
            continue
        number = np.asarray(value)
        shapes = [()] if name in ("alpha", "intensity") else [(), (1,), (dim,)]
        if number.shape not in shapes or not np.isfinite(number).all() or (name != "center" and (number <= 0).any()):
            raise InputError(f"{name}: expected {'finite' if name == 'center' else 'positive'} numbers, found {value}")


def _strong_modes(product: _Product, size: int | None) -> tuple[Int[np.ndarray, "M D"], Float[np.ndarray, " M"]]:
    """The multi-indices that matter and their log eigenvalues; the dropped ones expect less than DROPPED points.

    By Chernoff's bound the eigenvalues of total cost over c sum to at most λ_top e^(-θc) ∏_d Σ_n e^(-(1-θ)cost_dn)
    for 0 < θ < 1. A k-DPP is cut like the DPP with the odds Rλ that it is drawn from.
    """
    log_top = product.log_top if size is None else _log_tilted_top(product, size)
    theta = np.arange(0.01, 1, 0.01)
    log_sums = np.array([product.log_sum(1 - t) for t in theta])
    log_size = log_top + product.log_sum(1) - np.logaddexp(0, log_top)  # Σ λ/(1+λ) ≥ Σ λ/(1+λ_top)
    limit = float(np.min((log_top - log_size - np.log(DROPPED) + log_sums) / theta))
    if limit > product.hidden:
        cost = _multi_indices(product, limit)[1]
        if np.sum(np.exp(log_top - log_size - cost[cost > product.hidden])) > MOST_DROPPED:
            points = "so many points" if size is None else f"{size} points"
            raise InputError(f"{points} at so long a sigma need modes of the window that lie below round-off")
        limit = product.hidden
    degrees, cost = _multi_indices(product, limit)
    return degrees, product.log_top - cost


def _log_tilted_top(product: _Product, size: int) -> float:
    """log Rλ_top at, or somewhat above, the tilt of a k-DPP: that of its 2k or more strongest modes alone."""
    limit = 1.0
    while True:
        cost = _multi_indices(product, limit)[1]
        if len(cost) >= 2 * size or (limit >= product.hidden and len(cost) >= size):
            return _log_tilt(-cost, size)
        if limit >= product.hidden:
            raise InputError(f"size {size}: only {len(cost)} modes of the window lie above round-off at this sigma")
        limit = min(2 * limit, product.hidden)


def _multi_indices(product: _Product, limit: float) -> tuple[Int[np.ndarray, "M D"], Float[np.ndarray, " M"]]:
    """All multi-indices of total cost ≤ limit, and these costs."""
    degrees, left = np.zeros((1, 0), np.int32), np.array([limit])
    for costs in product.up_to(limit):
        counts = np.searchsorted(costs, left, side="right")
        total = int(counts.sum())
        if total > MOST_MODES:
            raise InputError(f"the model has more than {MOST_MODES} modes that matter: sigma is too short to draw from")
        row = np.repeat(np.arange(len(left)), counts)
        last = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        degrees, left = np.column_stack([degrees[row], last.astype(np.int32)]), left[row] - costs[last]
    return degrees, limit - left


# ------------------------------------------------------------------ separable continuous models: their points


class _Axis(NamedTuple):
    """Orthonormal functions of one coordinate, with piecewise constant bounds that lie above their squares."""

    knots: Float[np.ndarray, " K"]  # the ends of the C = K - 1 cells
    bounds: Float[np.ndarray, "m C"]
    cumulative: Float[np.ndarray, "m C"]  # integral of the bound up to the end of each cell
    evaluate: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, "m n"]]


def _with_bounds(knots: np.ndarray, largest: np.ndarray, evaluate: Callable[[np.ndarray], np.ndarray]) -> _Axis:
    return _Axis(knots, largest**2, np.cumsum(largest**2 * np.diff(knots), axis=1), evaluate)


_hermite_functions = jax.jit(real_space.hermite_functions, static_argnums=1)


@lru_cache(maxsize=16)
def _hermite_axis(count: int) -> _Axis:
    """ψ_0 … ψ_{count-1}. Where |z| ≤ √(2n+1), |ψ''| = |z²-2n-1||ψ| ≤ (2n+1)|ψ|, so within a cell of width h the
    largest |ψ| exceeds the values at the ends by at most h²/8 (2n+1) of itself; beyond, |ψ| only falls.

    The mass beyond √(2n+1) + 6.5 is under 1e-18.
    """

    def evaluate(z: np.ndarray) -> np.ndarray:
        return np.asarray(_hermite_functions(z, count))

    turning = np.sqrt(2 * count - 1)
    knots = _cells(-turning - 6.5, turning + 6.5, min(0.4 / turning, 0.05), count)
    excess = (knots[1] - knots[0]) ** 2 / 8 * (2 * np.arange(count)[:, None] + 1)
    return _with_bounds(knots, _larger_end(evaluate(knots)) / (1 - excess), evaluate)


@lru_cache(maxsize=16)
def _interval_axis(s: float, count: int) -> _Axis:
    """The first eigenfunctions of exp(-(x-y)²/(2s²)) on [0, 1].

    They are polynomials of degree N to round-off, so in the angle of x = (1 - cos θ)/2 trigonometric ones, for which
    Bernstein's inequality |f''| ≤ N² max|f| bounds what |f| can exceed its values at the ends of a cell by.
    """
    modes = interval_modes(s)
    degree = int(1.1 * np.sum(modes.eigenvalues > 1e-16 * modes.eigenvalues[0]) + 12)
    modes = modes._replace(eigenvalues=modes.eigenvalues[:count], vectors=modes.vectors[:, :count])

    def evaluate(x: np.ndarray) -> np.ndarray:
        return (modes.extend(x) / modes.eigenvalues).T

    angles = _cells(0.0, np.pi, np.pi / (6 * degree), count)
    knots = (1 - np.cos(angles)) / 2
    larger = _larger_end(evaluate(knots))
    excess = (angles[1] * degree) ** 2 / 8
    return _with_bounds(knots, larger + excess / (1 - excess) * larger.max(axis=1, keepdims=True), evaluate)


def _cells(low: float, high: float, width: float, count: int) -> Float[np.ndarray, " K"]:
    """Ends of equal cells of at most this width, where a table for `count` functions can be afforded."""
    cells = int(np.ceil((high - low) / width))
    if cells * count > MOST_BOUNDS:
        raise InputError(f"sigma is too short to draw from: {count} eigenfunctions per dimension matter")
    return np.linspace(low, high, cells + 1)


def _larger_end(values: Float[np.ndarray, "m K"]) -> Float[np.ndarray, "m K-1"]:
    return np.maximum(np.abs(values[:, :-1]), np.abs(values[:, 1:]))


def _draw_patterns(rng: np.random.Generator, process: _Process, sets: int, size: int | None) -> list[np.ndarray]:
    chosen = _choose_modes(rng, process.log_odds, sets, size)
    counts = 1 + np.max(process.degrees[np.concatenate(chosen)], axis=0, initial=0)
    axes = [process.axis(d, int(count)) for d, count in enumerate(counts)]
    drawn = [_project_points(rng, process.degrees[modes], axes) for modes in chosen]
    return [process.origin + process.unit * z for z in drawn]


def _project_points(
    rng: np.random.Generator, degrees: Int[np.ndarray, "n D"], axes: Sequence[_Axis]
) -> Float[np.ndarray, "n D"]:
    """One draw of the projection DPP onto the modes, by rejection from the sum of their bounds.

    ‖v⊥‖² only falls from point to point, so a proposal once rejected stays rejected, and a block of proposals
    serves several points: each is the first that still lies under ‖v⊥‖².
    """
    size = len(degrees)
    points, basis, found = np.empty(degrees.shape), np.empty((size, size)), 0
    expected = 1.3 * size * (1 + np.log(max(size, 1)))  # n H_n, and what the bounds add
    block = int(min(2 ** np.ceil(np.log2(expected + 16)), LARGEST_BLOCK))
    while found < size:
        proposed, height, v = _propose(rng, degrees, axes, block)
        residual = np.sum(v**2, axis=0) - np.sum((basis[:found] @ v) ** 2, axis=0)
        while found < size and (height < residual).any():
            first = np.argmax(height < residual)
            points[found] = proposed[first]
            basis[found] = _orthogonal_direction(v[:, first], basis[:found])
            residual -= (basis[found] @ v) ** 2
            residual[first] = -np.inf
            found += 1
    return points


def _propose(rng: np.random.Generator, degrees: Int[np.ndarray, "n D"], axes: Sequence[_Axis], block: int):
    """Points uniform under the graph of Σ_modes ∏_d bound_d ≥ ‖v‖²: their places, heights, and v there."""
    columns = [degrees[:, d] for d in range(len(axes))]
    mass = np.prod([axis.cumulative[n, -1] for axis, n in zip(axes, columns, strict=True)], axis=0)
    mode = np.searchsorted(np.cumsum(mass), rng.random(block) * mass.sum(), side="right").clip(max=len(mass) - 1)
    proposed, envelope, v = np.empty((block, len(axes))), np.ones((1, 1)), np.ones((1, 1))
    for d, (axis, n) in enumerate(zip(axes, columns, strict=True)):
        cell = _inverse_cumulative(axis.cumulative, n[mode], rng.random(block))
        left, right = axis.knots[cell], axis.knots[cell + 1]
        proposed[:, d] = left + rng.random(block) * (right - left)
        envelope = envelope * axis.bounds[n[:, None], cell]
        v = v * axis.evaluate(proposed[:, d])[n]
    return proposed, rng.random(block) * np.sum(envelope, axis=0), v


def _inverse_cumulative(cumulative: np.ndarray, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Per row the first cell whose cumulative value exceeds u times the row's last, by bisection."""
    target = u * cumulative[rows, -1]
    low, high = np.zeros_like(rows), np.full_like(rows, cumulative.shape[1] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        is_below = cumulative[rows, middle] <= target
        low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
    return low


class _CallableModule(ModuleType):
    """Importing a module binds its name in the package: `dpplearn.simulate(…)` then calls the function all the same."""

    def __call__(self, *args: Any, **kwargs: Any) -> PointPatterns | Subsets:
        return simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule

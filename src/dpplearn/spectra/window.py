"""Gaussian models on box windows, exact: products of the one-dimensional kernels of `interval`.

`prepare` looks at the data once: the windows, the points on Legendre polynomials, and tables of the
one-dimensional modes over the range of σ that the data can want. A likelihood then picks, by σ and by the
strength u = λ(2πσ²)^(D/2) (v = α(2πσ²)^(D/2) for `uniform`), one of two forms, both right to round-off:

- *tables*: modes interpolated from the tables (everyday work);
- *edges*: weak interaction at short range, where powers of the kernel suffice and the two ends of a side
  do not see each other, so that each edge has its closed correction.

What neither covers expects more than four times the observed points (or is flat over fifty windows): its
likelihood is so small that no chain goes there. It comes back as NaN, which is counted and reported.
"""

from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpplearn.data import PointPatterns, padded_size
from dpplearn.kernels import AnyArray, Stationary, Uniform, similarity_matrix
from dpplearn.linalg import log_dets, log_tilt
from dpplearn.spectra.interval import (
    SQRT_2PI,
    Table,
    edge_corrections,
    interval_eigenvalues,
    legendre_basis,
    tabulate,
)
from dpplearn.spectra.real_space import circle_log_esp, tilt_by_newton

POWERS = 7  # powers of the kernel taken exactly beside the strong modes; odd
ROUND_OFF = 1e-15
BLOCK = 256  # strong modes at a time
STEP = 1.5  # each table covers σ up to STEP times its lower end
ENDS_APART = 0.02  # σ below this part of every side: the two ends do not see each other
# On a line σ has tables from this part of the shortest side on; making them costs like 1/σ³, so below there are panels.
LINE_TABLES_FROM = 1 / 60
PANEL = 9.0  # a panel is 9 σ or a little more, so that beyond its two neighbours it sees nothing
PANEL_NODES = 64
# Where the edge form is used: u up to `weak`, with `powers` powers (weak ** powers is round-off).
WEAK = {1: (0.35, 36)}
WEAK_DEFAULT = (0.1, 15)


class Segment(NamedTuple):
    """One table, and the tensor modes that can matter in its range of σ."""

    table: Table
    order: Int[AnyArray, "W B M D"]  # in blocks of at most BLOCK, by decreasing eigenvalue


class Windowed(NamedTuple):
    """Patterns on windows, ready for the likelihood. Patterns with equal windows share one (`which`)."""

    points: Float[AnyArray, "T n D"]  # measured from the lower corner of the pattern's window
    mask: Bool[AnyArray, "T n"]
    which: Int[AnyArray, " T"]
    sides: Float[AnyArray, "W D"]
    side_lengths: Float[AnyArray, " l"]
    side_index: Int[AnyArray, "W D"]
    basis: Float[AnyArray, "T D n j"]  # Legendre polynomials at the points
    pairs: Int[AnyArray, "P 3"]  # (pattern, i, j), i ≤ j, close enough to interact in the edge form
    segments: tuple[Segment, ...]
    series: Float[AnyArray, "S C l m"]  # the eigenvalues of all segments, padded to the longest
    panels: Float[AnyArray, " P"]  # 0, 1 … as many panels as the longest line may need; none in the plane
    most: Float[AnyArray, ""] | float  # the largest intensity that the tables cover

    @property
    def dim(self) -> int:
        return self.points.shape[2]


def _weak(dim: int) -> tuple[float, int]:
    return WEAK.get(dim, WEAK_DEFAULT)


class BySize(NamedTuple):
    """Patterns in groups of similar size, so that small ones are not padded to the largest."""

    groups: tuple[Windowed, ...]


def prepare_by_size(data: PointPatterns) -> BySize:
    """The data of the stationary model: in two groups where that saves a third of the work, else in one."""
    sizes = np.array([padded_size(int(count)) for count in data.counts])
    work = {cut: float(np.sum(np.where(sizes <= cut, cut, sizes.max()) ** 2.0)) for cut in sorted(set(sizes.tolist()))}
    cut = min(work, key=lambda c: work[c])
    small = sizes <= cut if work[cut] < 2 / 3 * work[int(sizes.max())] else np.zeros(len(sizes), bool)
    most = _largest_intensity(data)
    return BySize(tuple(prepare(_only(data, part), most=most) for part in (small, ~small) if part.any()))


def _only(data: PointPatterns, part: Bool[np.ndarray, " T"]) -> PointPatterns:
    assert data.windows is not None
    size = padded_size(int(data.counts[part].max()))
    windows = tuple(box for box, is_in in zip(data.windows, part, strict=True) if is_in)
    return PointPatterns(data.points[part, :size], data.mask[part, :size], windows)


def prepare(
    data: PointPatterns, with_functions: bool = True, most: float | None = None, with_panels: bool = True
) -> Windowed:
    """Windows, bases and tables for the data; `with_functions` is False where only normalisers are needed.

    `most` is the largest intensity to be covered, by default four times what was observed and a little more. A k-DPP
    on a line cannot use panels and needs tables of its eigenvalues in their place.
    """
    assert data.windows is not None
    most = _largest_intensity(data) if most is None else most
    boxes = list(dict.fromkeys(tuple(box.lengths) for box in data.windows))
    sides = np.array(boxes)
    which = np.array([boxes.index(tuple(box.lengths)) for box in data.windows])
    side_lengths, side_index = np.unique(sides, return_inverse=True)
    lower = np.array([box.lower for box in data.windows])
    points = np.where(data.mask[..., None], data.points - lower[:, None], sides[which][:, None] / 2)
    on_panels = with_panels and data.dim == 1
    low, high = _table_range(most, sides, on_panels)
    ends = _table_ends(low, high, float(sides.min()))
    segments = []
    for a, b in pairwise(ends):
        table = _table(tuple(map(float, side_lengths)), float(a), float(b), with_functions)
        order = _strong_modes(table, sides, most) if with_functions else np.zeros((len(sides), 0, 0, data.dim), int)
        segments.append(Segment(table, order))
    degree = 2 * max(segment.table.functions.shape[3] for segment in segments)
    basis = legendre_basis(np.moveaxis(points / sides[which][:, None], 2, 1), degree if with_functions else 0)
    weak, powers = _weak(data.dim)
    reach = (
        np.sqrt(2 * powers * (39 + powers * np.log(weak)))
        if -39 / np.log(weak) > 2 * powers
        else 39 / np.sqrt(-2 * np.log(weak))
    )
    pairs = _near_pairs(points, data.mask, float(reach * low)) if with_functions else np.zeros((0, 3), int)
    tables = [segment.table.eigenvalues for segment in segments]
    full = np.max([table.shape for table in tables], axis=0)
    series = np.stack([np.pad(t, [(0, f - n) for f, n in zip(full, t.shape, strict=True)]) for t in tables])
    index = side_index.reshape(sides.shape)
    # a process that is not weak on shorter ranges than these has more points than `most`
    panels = np.arange(sides.max() / (PANEL * 0.7 * _weak_sigma(most, 1)) if on_panels else 0.0)
    return Windowed(
        points, data.mask, which, sides, side_lengths, index, basis, pairs, tuple(segments), series, panels, most
    )


@lru_cache(maxsize=64)
def _table(lengths: tuple[float, ...], low: float, high: float, with_functions: bool) -> Table:
    # remembered: many fits on equal windows, as in a simulation study, build their tables once
    return tabulate(np.array(lengths), low, high, with_functions)


def _most_points(data: PointPatterns) -> float:
    """More points than any Θ of interest expects on a mean window, rounded up so that similar data share programs."""
    most = 4 * float(np.mean(data.counts)) + 20
    return float(2 ** (np.ceil(3 * np.log2(most)) / 3))


def _largest_intensity(data: PointPatterns) -> float:
    return _most_points(data) / float(np.mean([box.volume for box in data.windows or ()]))


def _table_range(most: float, sides: np.ndarray, on_panels: bool) -> tuple[float, float]:
    """The range of σ the tables cover: from weak interaction at the largest intensity to fifty windows."""
    short = float(sides.min())
    low = LINE_TABLES_FROM * short if on_panels else min(_weak_sigma(most, sides.shape[1]), ENDS_APART * short)
    return low, 50 * float(sides.max())


def _weak_sigma(most: float, dim: int) -> float:
    """Where the interaction is weak even at the largest intensity."""
    return float(((_weak(dim)[0] / most) ** (1 / dim)) / SQRT_2PI)


def _table_ends(low: float, high: float, side: float) -> list[float]:
    """Narrow tables where they are large (short ranges, many modes), wide ones where they are small."""
    narrow = [low * STEP**i for i in range(max(1, int(np.ceil(np.log(max(0.12 * side / low, 1.1)) / np.log(STEP)))))]
    last = narrow[-1] * STEP
    count = int(np.ceil(np.log(high / last) / np.log(8.0)))
    return narrow + list(np.geomspace(last, high, count + 1))


def _strong_modes(table: Table, sides: np.ndarray, most: float) -> np.ndarray:
    """Per window the multi-indices of modes with κ^(POWERS+1) above round-off for the largest u this table can meet.

    u is at most 1, and at most what the largest intensity `most` makes at the table's upper end.
    """
    dim, n_functions = sides.shape[1], 2 * table.functions.shape[4]
    largest = min(1.0, most * (SQRT_2PI * table.high) ** dim)
    orders = []
    for lengths in sides:
        relative = []  # e_d / (√2π σ) ≤ 1, so κ = u ∏ of these; largest at the table's lower end
        for length in lengths:
            e = interval_eigenvalues(table.low / float(length)) * length / (SQRT_2PI * table.low)
            relative.append(e[:n_functions])
        extents = [range(int(np.sum((largest * r) ** (POWERS + 1) > ROUND_OFF))) for r in relative]
        grid = np.array(list(product(*extents)), dtype=int).reshape(-1, dim)
        kappa = largest * np.prod([relative[d][grid[:, d]] for d in range(dim)], axis=0)
        strongest = np.argsort(-kappa, kind="stable")
        orders.append(grid[strongest[kappa[strongest] ** (POWERS + 1) > ROUND_OFF]])
    longest = max(1, *map(len, orders))
    blocks = -(-longest // BLOCK)
    length = blocks * -(-longest // blocks)
    # pad with the last mode of each side, whose eigenvalue is negligible
    pad = np.full((1, dim), n_functions - 1)
    padded = [np.concatenate([o, np.repeat(pad, length - len(o), axis=0)]) for o in orders]
    return np.stack(padded).reshape(len(sides), blocks, -1, dim)


def _near_pairs(points: np.ndarray, mask: np.ndarray, reach: float) -> np.ndarray:
    rows = []
    for t, (x, present) in enumerate(zip(points, mask, strict=True)):
        near = np.sum((x[:, None] - x) ** 2, axis=-1) <= reach**2
        i, j = np.nonzero(np.triu(near & present[:, None] & present))
        rows.append(np.stack([np.full_like(i, t), i, j], axis=1))
    pairs = np.concatenate(rows)
    length = max(128, 2 ** int(np.ceil(np.log2(max(len(pairs), 1)))))
    return np.concatenate([pairs, np.repeat(pairs[:1], length - len(pairs), axis=0)])  # few shapes, few programs


# ------------------------------------------------------------------ one-dimensional modes at a given σ


def _chebyshev(x: Float[Array, "..."], count: int) -> Float[Array, "... c"]:
    """T_0 … T_{count-1} at x in [-1, 1]."""
    return jnp.cos(jnp.arange(count) * jnp.arccos(jnp.clip(x, -1 + 1e-15, 1 - 1e-15))[..., None])


def _weights(table: Table, sigma: Float[Array, ""]) -> Float[Array, " C"]:
    return _chebyshev(_position(sigma, table.low, table.high), table.eigenvalues.shape[0])


def _position(sigma, low, high):
    """Where σ lies on [-1, 1] in the log between the ends of a table."""
    return 2 * jnp.log(sigma / low) / jnp.log(high / low) - 1


def _eigenvalues(windowed: Windowed, table: Table, sigma: Float[Array, ""]) -> Float[Array, "W D m"]:
    """Eigenvalues on each side of each window, in its own length."""
    per_length = jnp.tensordot(_weights(table, sigma), table.eigenvalues, 1) * windowed.side_lengths[:, None]
    return jnp.maximum(per_length, 0.0)[windowed.side_index]


def _functions(windowed: Windowed, table: Table, sigma: Float[Array, ""]) -> Float[Array, "T D n m"]:
    """g_m at every coordinate of every point, in the length of its side."""
    coefficients = jnp.tensordot(_weights(table, sigma), table.functions, 1)
    n_lengths, _, half_degree, half_modes = coefficients.shape
    if n_lengths == 1:
        even, odd = (windowed.basis[..., p : 2 * half_degree : 2] @ coefficients[0, p] for p in (0, 1))
    else:
        own = coefficients[windowed.side_index[windowed.which]]
        even, odd = (windowed.basis[..., p : 2 * half_degree : 2] @ own[:, :, p] for p in (0, 1))
    g = jnp.stack([even, odd], axis=-1).reshape(*even.shape[:-1], 2 * half_modes)
    return g * jnp.sqrt(windowed.sides[windowed.which])[:, :, None, None]


# ------------------------------------------------------------------ the stationary model, K = λ exp(-‖x-y‖²/2σ²)


def _l_matrix(intensity, points, sigma, e, g, order):
    """L = K_W (I - K_W)⁻¹ at points of one window: POWERS powers of K, and the strong modes for the rest of the series.

    L = Σ_{m≤J} λ^m ∏_d k_d^(m) + Gᵀ diag(κ^(J-1)/(1-κ)) G, k^(m) = g diag(e^(m-2)) gᵀ, G = λ ∏ gᵀ, κ = λ ∏ e;
    e, g per dimension, `order` the strong modes.
    """
    result = similarity_matrix(Uniform(alpha=1.0, sigma=sigma), points) * intensity

    def add_power(_, state):
        total, scaled, strength = state  # scaled = g diag(e^(m-2)), strength = λ^m
        factors = [scaled_d @ g_d.T for scaled_d, g_d in zip(scaled, g, strict=True)]
        return total + strength * jnp.prod(jnp.stack(factors), axis=0), scaled * e[:, None], strength * intensity

    # a loop, not its unrolled copies: there is one of these for every table
    result = jax.lax.fori_loop(2, POWERS + 1, add_power, (result, g, intensity**2))[0]

    rows = [g_d.T for g_d in g]  # a mode is then a row in one piece

    def add_modes(total, some):
        kappa = _strong_kappa(intensity, e, some)

        def add():
            modes = (intensity * kappa ** (POWERS // 2) / jnp.sqrt(1 - kappa))[:, None]
            for d in range(points.shape[1]):
                modes = modes * rows[d][some[:, d]]
            return total + modes.T @ modes

        # modes come in decreasing κ, and at the present λ most of a table's may be too weak to count
        return jax.lax.cond(jnp.max(kappa) ** (POWERS + 1) > ROUND_OFF, add, lambda: total), None

    return jax.lax.scan(add_modes, result, order)[0]


def _strong_kappa(intensity, e, order):
    """κ = λ ∏_d e_d of the strong modes."""
    kappa = intensity
    for d in range(order.shape[-1]):
        kappa = kappa * e[d][order[..., d]]
    return kappa


def _log_fredholm_marginal(intensity, sides, e, order):
    """log det(I - K_W) = -Σ_{m≤J} λ^m ∏ tr(k_d^m)/m + Σ_modes [log(1-κ) + Σ_{m≤J} κ^m/m]; -inf where some κ ≥ 1."""
    traces = sum(intensity**m / m * jnp.prod(jnp.sum(e**m, axis=1)) for m in range(2, POWERS + 1))
    kappa = _strong_kappa(intensity, e, order).ravel()
    series = jnp.polyval(jnp.array([1 / m for m in range(POWERS, 0, -1)] + [0.0]), kappa, unroll=POWERS)
    rest = jnp.log1p(-jnp.minimum(kappa, 1.0)) + series
    return jnp.sum(rest) - intensity * jnp.prod(sides) - traces


def stationary_terms(kernel: Stationary, windowed: Windowed):
    """log det L_A per pattern, log det(I - K_W) per window, and the smallest Cholesky pivot per pattern."""
    intensity, sigma = jnp.asarray(kernel.intensity), jnp.asarray(kernel.sigma)
    tables = [_stationary_by_table(segment) for segment in windowed.segments]
    panels = [_stationary_by_panels] * bool(len(windowed.panels))
    branches = [_stationary_by_edges, *tables, _not_covered, *panels]
    l_matrices, log_fredholm = jax.lax.switch(_regime(intensity, sigma, windowed), branches, intensity, sigma, windowed)
    scale = jnp.sqrt(jnp.where(windowed.mask, jnp.diagonal(l_matrices, axis1=1, axis2=2), 1.0))
    unit = l_matrices / (scale[:, :, None] * scale[:, None, :])
    values, pivots = log_dets(unit, jnp.asarray(windowed.mask))
    return values + 2 * jnp.sum(jnp.log(scale), axis=1), log_fredholm, pivots


def _regime(intensity, sigma, windowed: Windowed) -> Int[Array, ""]:
    """0 for edges, 1 … for the table that holds σ, then one for none, and on a line the last for panels."""
    weak, _ = _weak(windowed.dim)
    strength = intensity * (SQRT_2PI * sigma) ** windowed.dim
    highs = jnp.array([segment.table.high for segment in windowed.segments])
    low = windowed.segments[0].table.low
    none = len(windowed.segments) + 1
    table = 1 + jnp.searchsorted(highs, sigma)
    covered = (intensity <= windowed.most) & (sigma <= highs[-1])
    by_strength = jnp.where(strength <= weak, 0, jnp.where(_on_panels(windowed, sigma), none + 1, none))
    return jnp.where(sigma >= low, jnp.where(covered, table, none), by_strength)


def _stationary_by_table(segment: Segment):
    def terms(intensity, sigma, windowed):
        e = _eigenvalues(windowed, segment.table, sigma)
        g = _functions(windowed, segment.table, sigma)
        order = jnp.asarray(segment.order)
        n_functions = g.shape[-1]

        def one(pattern):
            points, g, w = pattern
            return _l_matrix(intensity, points, sigma, e[w, :, :n_functions], g, order[w])

        # one pattern after the other: a batched product of small matrices is slower than the products
        l_matrices = jax.lax.map(one, (jnp.asarray(windowed.points), g, jnp.asarray(windowed.which)))
        fredholm = jax.vmap(lambda s, e, o: _log_fredholm_marginal(intensity, s, e, o))
        return l_matrices, fredholm(windowed.sides, e, order)

    return terms


def _on_panels(windowed: Windowed, sigma) -> Bool[Array, ""]:
    """Whether the longest line has no more panels at this σ than were prepared."""
    return jnp.max(windowed.sides) < len(windowed.panels) * PANEL * jnp.min(sigma)


def _stationary_by_panels(intensity, sigma, windowed: Windowed):
    def one(pattern):
        points, side = pattern
        return _panels(intensity, sigma, side, points, windowed.panels)

    l_matrices, log_fredholm = jax.lax.map(one, (windowed.points[:, :, 0], windowed.sides[windowed.which][:, 0]))
    return l_matrices, jnp.zeros(len(windowed.sides)).at[windowed.which].set(log_fredholm)


def _panels(strength, sigma, side, x: Float[Array, " n"], panels: Float[AnyArray, " P"]):
    """K + K (I - K)⁻¹ K at points x of [0, side] and log det(I - K), K = strength · exp(-(x-y)²/(2σ²)).

    On equal panels of 9 σ and a little more, with Gauss nodes on each, I - K is block tridiagonal with the same blocks
    throughout: a block Cholesky factorisation from left to right, panels beyond the last one skipped.
    """
    count = jnp.floor(side / (PANEL * sigma))
    width = side / count
    t, w = np.polynomial.legendre.leggauss(PANEL_NODES)
    nodes, root = width * (t + 1) / 2, jnp.sqrt(width * w / 2)

    def kernel(difference):
        return strength * jnp.exp(-(difference**2) / (2 * sigma**2))

    def between(shift):
        return root[:, None] * kernel(nodes[:, None] - nodes - shift) * root

    def towards_points(panel):
        return root[:, None] * kernel(panel * width + nodes[:, None] - x)

    own, following = jnp.eye(PANEL_NODES) - between(0.0), -between(width)

    def eliminate(state, panel):
        def add():
            block, right, total, log_det = state
            factor = jnp.linalg.cholesky(block, symmetrize_input=False)
            solved = jsl.solve_triangular(factor, jnp.concatenate([right, following], axis=1), lower=True)
            v, g = solved[:, : len(x)], solved[:, len(x) :]
            right = towards_points(panel + 1) - g.T @ v
            return own - g.T @ g, right, total + v.T @ v, log_det + 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))

        return jax.lax.cond(panel < count, add, lambda: state), None

    start = own, towards_points(0.0), kernel(x[:, None] - x), jnp.zeros(())
    _, _, total, log_det = jax.lax.scan(eliminate, start, jnp.asarray(panels))[0]
    return total, log_det


def _edge_features(windowed: Windowed, sigma, corrections):
    """f_mr at the distance of every coordinate to its two edges, in units of σ: (T, n, D, 2, m, r)."""
    to_low = windowed.points / sigma
    to_high = windowed.sides[windowed.which][:, None] / sigma - to_low
    distance = jnp.stack([to_low, to_high], axis=-1)
    basis = _chebyshev(2 * jnp.minimum(distance / corrections.reach, 1.0) - 1, corrections.coefficients.shape[2])
    features = jnp.tensordot(basis, corrections.coefficients, ((-1,), (2,)))
    return jnp.where((distance < corrections.reach)[..., None, None], features, 0.0)


def _stationary_by_edges(intensity, sigma, windowed: Windowed):
    _, powers = _weak(windowed.dim)
    corrections = edge_corrections(powers)
    m = jnp.arange(2, powers + 1)
    features = _edge_features(windowed, sigma, corrections)
    t, i, j = windowed.pairs.T
    squared = ((windowed.points[t, i] - windowed.points[t, j]) / sigma) ** 2  # (P, D)
    lost = jnp.sum(features[t, i] * features[t, j] * corrections.sign, axis=(2, 4))  # (P, D, m)
    one_dim = jnp.exp(-squared[:, :, None] / (2 * m)) / jnp.sqrt(m) - lost
    strength = intensity * (SQRT_2PI * sigma) ** windowed.dim
    first = intensity * jnp.exp(-jnp.sum(squared, 1) / 2)
    values = first + jnp.sum(intensity * strength ** (m - 1) * jnp.prod(one_dim, axis=1), axis=1)
    l_matrices = (
        jnp.zeros((*windowed.mask.shape, windowed.mask.shape[1])).at[t, i, j].set(values).at[t, j, i].set(values)
    )
    traces = _edge_power_traces(windowed, sigma, powers)  # (W, m)
    all_m = jnp.arange(1, powers + 1)
    return l_matrices, -jnp.sum(intensity * strength ** (all_m - 1) * traces / all_m, axis=1)


def _edge_power_traces(windowed: Windowed, sigma, powers: int) -> Float[Array, "W m"]:
    """∏_d tr(k_d^m) / (√2π σ_d)^(m-1), m = 1 … powers: a length less what two edges take."""
    m = jnp.arange(1, powers + 1)
    lost = jnp.concatenate([jnp.zeros(1), jnp.asarray(edge_corrections(powers).trace)])
    sigmas = jnp.broadcast_to(sigma, (windowed.dim,))
    return jnp.prod(windowed.sides[:, :, None] / jnp.sqrt(m) - 2 * sigmas[:, None] * lost, axis=1)


def _not_covered(_intensity, _sigma, windowed: Windowed):
    nan = jnp.full((), jnp.nan)
    return jnp.broadcast_to(nan, (*windowed.mask.shape, windowed.mask.shape[1])), jnp.broadcast_to(
        nan, len(windowed.sides)
    )


# ------------------------------------------------------------------ the L-model, L = α exp(-Σ (x_d-y_d)²/2σ_d²)


def uniform_log_normalizer(kernel: Uniform, windowed: Windowed) -> Float[Array, " W"]:
    """log det(I + L) on each window."""
    sigma = jnp.broadcast_to(jnp.asarray(kernel.sigma), (windowed.dim,))
    alpha = jnp.asarray(kernel.alpha)

    def by_table(alpha, sigma):
        return _over_modes(windowed, sigma, lambda modes: jnp.sum(jnp.log1p(alpha * modes)))

    def by_edges(alpha, sigma):
        return _edge_log_fredholm(windowed, sigma, jnp.log(alpha), jnp.ones(1))[:, 0]

    def not_covered(_alpha, _sigma):
        return jnp.full(len(windowed.sides), jnp.nan)

    def by_panels(alpha, sigma):
        return jax.lax.map(lambda side: _panels(-alpha, sigma[0], side[0], jnp.zeros(0), windowed.panels)[1], sides)

    sides = jnp.asarray(windowed.sides)
    weak, _ = _weak(windowed.dim)
    edges_hold = (alpha * jnp.prod(SQRT_2PI * sigma) <= weak) & jnp.all(sigma <= ENDS_APART * windowed.sides)
    otherwise = jnp.where(edges_hold, 1, jnp.where(_on_panels(windowed, sigma), 3, 2))
    too_long = jnp.any(sigma > windowed.segments[-1].table.high)
    regime = jnp.where(_in_table(windowed, sigma), 0, jnp.where(too_long, 2, otherwise))
    branches = [by_table, by_edges, not_covered, *[by_panels] * bool(len(windowed.panels))]
    return jax.lax.switch(regime, branches, alpha, sigma)


def uniform_log_normalizer_fixed_size(
    kernel: Uniform, windowed: Windowed, size: int
) -> tuple[Float[Array, " W"], Float[Array, " W"]]:
    """log e_k of L on each window, k = size, by the Fourier sum of `circle_log_esp`, and its round-off.

    Computed eigenvalues have errors of eps λ₁, so log e_k errs by about eps λ₁ Σ ∂log e_k/∂λ_i, ∂log e_k/∂λ ≈ R/(1+Rλ).
    """
    assert not len(windowed.panels), "a k-DPP on a line needs tables: prepare(…, with_panels=False)"
    sigma = jnp.broadcast_to(jnp.asarray(kernel.sigma), (windowed.dim,))

    def by_table(sigma):
        def one(modes):
            log_r = log_tilt(jax.lax.stop_gradient(modes), size)
            scaled = modes * jnp.exp(log_r)
            value = circle_log_esp(lambda phases: _log_fredholm(scaled, phases, size), log_r, size)
            strongest = -jnp.sort(-jax.lax.stop_gradient(scaled))[: 2 * size]
            return jnp.stack([value, jnp.finfo(value.dtype).eps * strongest[0] * jnp.sum(1 / (1 + strongest))])

        return _over_modes(windowed, sigma, one)

    def by_edges(sigma):
        def one(w):
            def fredholm(log_r, phases):
                return _edge_log_fredholm(windowed, sigma, log_r, phases)[w]

            log_r = tilt_by_newton(
                lambda x: fredholm(x, jnp.ones(1))[0], jnp.log(size / jnp.prod(windowed.sides[w])), size
            )
            value = circle_log_esp(lambda phases: fredholm(log_r, phases), log_r, size)
            return jnp.stack([value, jnp.zeros(())])

        return jnp.stack([one(w) for w in range(len(windowed.sides))])

    # below the tables k points are always weak at the scale σ; above them nothing is resolved any more
    regime = jnp.where(_in_table(windowed, sigma), 0, 1)
    values, round_off = jax.lax.switch(regime, [by_table, by_edges], sigma).T
    return size * jnp.log(kernel.alpha) + values, round_off


def uniform_sizes(kernel: Uniform, windowed: Windowed) -> tuple[Float[Array, " W"], Float[Array, " W"]]:
    """E|A| and Var|A| on each window: the first two derivatives of log Z in log α."""

    def mean(shift):
        def log_z(t):
            return uniform_log_normalizer(Uniform(alpha=kernel.alpha * jnp.exp(t), sigma=kernel.sigma), windowed)

        return jax.jvp(log_z, (shift,), (jnp.ones_like(shift),))[1]

    return jax.jvp(mean, (jnp.zeros(()),), (jnp.ones(()),))


def _in_table(windowed: Windowed, sigma: Float[Array, " D"]) -> Bool[Array, ""]:
    low, high = windowed.segments[0].table.low, windowed.segments[-1].table.high
    return jnp.all((sigma >= low) & (sigma <= high))


def _over_modes(windowed: Windowed, sigma, function):
    """function(∏_d e_d over the tensor modes) per window, with as many modes per side as count at this σ."""
    series = jnp.asarray(windowed.series)
    lows, highs = (jnp.array([segment.table[i] for segment in windowed.segments]) for i in (0, 1))

    def side(sigma_d, index):
        segment = jnp.clip(jnp.searchsorted(highs, sigma_d), 0, len(series) - 1)
        position = _position(sigma_d, lows[segment], highs[segment])
        per_length = jnp.tensordot(_chebyshev(position, series.shape[1]), series[segment], 1)
        return jnp.maximum(per_length * windowed.side_lengths[:, None], 0.0)[index]

    e = jnp.stack([side(sigma[d], windowed.side_index[:, d]) for d in range(windowed.dim)], axis=1)  # (W, D, m)
    needed = jnp.max(jnp.sum(e > 1e-18 * e[:, :, :1], axis=-1))
    sizes = [m for m in (12, 18, 27, 40, 60, 90, 135, 200, 300, 450, 675, 1000) if m < e.shape[-1]] + [e.shape[-1]]

    def at(m):
        def branch(e):
            def one(e_w):
                modes = e_w[0, :m]
                for d in range(1, windowed.dim):
                    modes = (modes[:, None] * e_w[d, :m]).ravel()
                return function(modes)

            return jnp.stack([one(e_w) for e_w in e])

        return branch

    return jax.lax.switch(jnp.searchsorted(jnp.array(sizes), needed), [at(m) for m in sizes], e)


def _log_fredholm(modes: Float[Array, " n"], phases, size: int):
    """log det(1 + e^{iθ} R L) from the eigenvalues of R L, whose expected size is `size`.

    At most 5·size of them exceed ¼ (each adds more than ⅕ to the size): these one by one, the rest by power sums.
    """
    head = min(5 * size + 8, len(modes))
    ordered = -jnp.sort(-modes)
    m = jnp.arange(1, 29)
    tail_sums = jnp.sum(ordered[head:, None] ** m, axis=0)
    # 1 + zλ = (1 + λ)(1 - p + z p), p = λ/(1+λ): one logarithm of a product of factors of modulus at most 1
    p = ordered[:head] / (1 + ordered[:head])
    heads = jnp.sum(jnp.log1p(ordered[:head])) + jnp.log(jnp.prod(1 - p + phases[:, None] * p, axis=1))
    return heads - ((-phases[:, None]) ** m) @ (tail_sums / m)


def _edge_log_fredholm(windowed: Windowed, sigma, log_scale, phases):
    """log det(1 + z L) = -Σ_m (-z)^m tr(L^m)/m on each window, z = phase · scale, for a weak L of short range."""
    _, powers = _weak(windowed.dim)
    m = jnp.arange(1, powers + 1)
    sigmas = jnp.broadcast_to(sigma, (windowed.dim,))
    strength = log_scale + jnp.sum(jnp.log(SQRT_2PI * sigmas))
    weight = jnp.exp(log_scale + (m - 1) * strength) / m
    return -(_edge_power_traces(windowed, sigmas, powers) * weight) @ ((-phases) ** m[:, None])

"""The one-dimensional Gaussian kernel exp(-(x-y)²/(2s²)) on [0, 1]: what every box model is a product of.

Everything here is NumPy, done once: the eigenproblem on Gauss–Legendre nodes (`interval_modes`), its
tabulation over a range of s so that a likelihood needs no eigenproblem (`tabulate`), and the corrections
that an edge makes to the powers of the kernel when the two ends are far apart (`edge_corrections`).
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import roots_legendre

SQRT_2PI = np.sqrt(2 * np.pi)


class IntervalModes(NamedTuple):
    """Eigenpairs of the kernel on the nodes: K v = e v for K_ij = √w_i k(x_i, x_j) √w_j, e decreasing."""

    s: float
    nodes: Float[np.ndarray, " N"]
    sqrt_weights: Float[np.ndarray, " N"]
    eigenvalues: Float[np.ndarray, " m"]
    vectors: Float[np.ndarray, "N m"]

    def extend(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n m"]:
        """g_m(x) = e_m φ_m(x) = Σ_i k(x, x_i) √w_i v_im (Nyström): no division by a small eigenvalue."""
        kernel = np.exp(-((x[:, None] - self.nodes) ** 2) / (2 * self.s**2))
        return (kernel * self.sqrt_weights) @ self.vectors


@lru_cache(maxsize=64)
def _gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = roots_legendre(count)
    return nodes, weights


@lru_cache(maxsize=32)
def interval_modes(s: float) -> IntervalModes:
    """All eigenpairs of exp(-(x-y)²/(2s²)) on [0, 1], right to round-off: 4/s + 20 nodes resolve the kernel.

    Even and odd functions about the middle are solved apart (a quarter of the cost); modes alternate
    between them, and each eigenvector's sign is fixed at the left end.
    """
    t, root, even, odd = _halves(s)
    half = len(t)
    eigenvalues, vectors = np.empty(2 * half), np.empty((2 * half, 2 * half))
    for parity, sign, matrix in ((0, 1.0, even), (1, -1.0, odd)):
        values, columns = np.linalg.eigh(matrix)
        values, columns = values[::-1], columns[:, ::-1] / np.sqrt(2)
        columns = columns * np.where(columns[-1] >= 0, 1.0, -1.0) * sign  # positive at x = 0
        eigenvalues[parity::2] = np.maximum(values, 0.0)
        vectors[:half, parity::2] = sign * columns[::-1]
        vectors[half:, parity::2] = columns
    nodes = np.concatenate([(1 - t[::-1]) / 2, (1 + t) / 2])
    return IntervalModes(s, nodes, np.concatenate([root[::-1], root]), eigenvalues, vectors)


@lru_cache(maxsize=32)
def interval_eigenvalues(s: float) -> Float[np.ndarray, " m"]:
    """The eigenvalues of `interval_modes`, without the vectors, which cost many times as much."""
    _, _, even, odd = _halves(s)
    values = np.stack([np.linalg.eigvalsh(matrix)[::-1] for matrix in (even, odd)], axis=1)
    return np.maximum(values.ravel(), 0.0)


def _halves(s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Nodes t on the right half, x = (1 ± t)/2, roots of their weights, and the kernel on even and on odd functions."""
    half = int(np.ceil((4 / s + 20) / 2 / 8)) * 8
    t, w = (values[half:] for values in _gauss_legendre(2 * half))
    root = np.sqrt(w / 2)
    near, far = (np.exp(-(((t[:, None] + sign * t) / (2 * s)) ** 2) / 2) for sign in (-1, 1))
    even, odd = (root[:, None] * (near + sign * far) * root for sign in (1, -1))
    return t, root, even, odd


def legendre_basis(x: Float[np.ndarray, "*n"], count: int) -> Float[np.ndarray, "*n count"]:
    """√(2l+1) P_l(2x-1), l < count: orthonormal on [0, 1]."""
    t = 2 * np.asarray(x) - 1
    basis = np.empty((*t.shape, count))
    previous, current = np.zeros_like(t), np.ones_like(t)
    for degree in range(count):
        basis[..., degree] = np.sqrt(2 * degree + 1) * current
        previous, current = current, ((2 * degree + 1) * t * current - degree * previous) / (degree + 1)
    return basis


class Table(NamedTuple):
    """Eigenvalues and eigenfunctions for low ≤ s·length ≤ high, Chebyshev series in the log of the scale.

    `eigenvalues[c, l, m]` and `functions[c, l, p, j, i]`: the c-th Chebyshev coefficient, for length l, of the m-th
    eigenvalue, and of the Legendre coefficient of degree 2j+p in g_{2i+p} (even modes are even polynomials).
    """

    low: float
    high: float
    eigenvalues: Float[np.ndarray, "C l m"]
    functions: Float[np.ndarray, "C l 2 j i"]


def tabulate(lengths: Float[np.ndarray, " l"], low: float, high: float, with_functions: bool = True) -> Table:
    """Tabulate the modes of exp(-(x-y)²/(2σ²)) on [0, length] for σ in [low, high], in units of each length."""
    count = int(np.ceil(14 + 30 * np.log(high / low)))
    angle = np.pi * (np.arange(count) + 0.5) / count
    sigmas = np.exp(np.log(low) + (np.cos(angle) + 1) / 2 * np.log(high / low))
    to_series = np.cos(np.arange(count)[:, None] * angle) * np.where(np.arange(count) == 0, 1, 2)[:, None] / count
    widest = interval_eigenvalues(low / float(lengths.max()))
    relative = widest / widest[0]
    n_values = int(np.sum(relative > 1e-18))
    n_functions = 2 * int(np.ceil(np.sum(relative > 1e-8) / 2)) if with_functions else 0
    degree = 2 * int(np.ceil((1.1 * np.sum(relative > 1e-16) + 12) / 2))
    values = np.zeros((count, len(lengths), n_values))
    functions = np.zeros((count, len(lengths), 2, degree // 2, n_functions // 2))
    for c, sigma in enumerate(sigmas):
        for i, length in enumerate(lengths):
            s = float(sigma / length)
            found = interval_modes(s).eigenvalues if with_functions else interval_eigenvalues(s)
            m = min(n_values, len(found))
            values[c, i, :m] = found[:m]
            if with_functions:
                functions[c, i] = _legendre_coefficients(interval_modes(s), degree, n_functions)
    series = np.tensordot(to_series, values, 1), np.tensordot(to_series, functions, 1)
    return Table(low, high, *series)


def _legendre_coefficients(modes: IntervalModes, degree: int, n_functions: int) -> np.ndarray:
    """g_n = Σ_l c_ln √(2l+1) P_l(2x-1) by quadrature on the nodes, where g_n(x_i) √w_i = e_n v_in."""
    # degrees from the number of nodes on are under round-off, but the nodes would alias them
    known = min(degree, len(modes.nodes))
    basis = legendre_basis(modes.nodes, known) * modes.sqrt_weights[:, None]
    m = min(n_functions, len(modes.eigenvalues))
    full = np.zeros((degree, n_functions))
    full[:known, :m] = basis.T @ (modes.eigenvalues[:m] * modes.vectors[:, :m])
    return np.stack([full[parity::2, parity::2] for parity in (0, 1)])


class EdgeCorrections(NamedTuple):
    """What one edge takes from the powers of exp(-(x-y)²/2) on the half-line, per (√2π)^(m-1), m = 2 … J.

    k^(m)(a, b) = (√2π)^(m-1) [exp(-(a-b)²/2m)/√m - Σ_r sign_mr f_mr(a) f_mr(b)], a, b the distances to the edge,
    f_mr(a) = Σ_c coefficients[m, r, c] T_c(2a/reach - 1) for a < reach and 0 beyond; `trace[m]` = ∫ Σ sign f².
    """

    reach: float
    coefficients: Float[np.ndarray, "m r C"]
    sign: Float[np.ndarray, "m r"]
    trace: Float[np.ndarray, " m"]


@lru_cache(maxsize=4)
def edge_corrections(powers: int) -> EdgeCorrections:
    """Corrections for the powers 2 … `powers`, from an interval so long that its ends do not see each other."""
    reach = float(np.sqrt(2 * powers * 37.0))
    length = 4 * reach
    modes = interval_modes(1 / length)
    scaled = modes.eigenvalues * length / SQRT_2PI  # at most 1
    count = int(3 * reach) + 24
    angle = np.pi * (np.arange(count) + 0.5) / count
    at = (np.cos(angle) + 1) / 2 * reach
    to_series = np.cos(np.arange(count)[:, None] * angle) * np.where(np.arange(count) == 0, 1, 2)[:, None] / count
    g = modes.extend(at / length) * np.sqrt(length) / SQRT_2PI
    difference = at[:, None] - at
    features, signs, traces = [], [], []
    for m in range(2, powers + 1):
        # K^m = Σ e^m φ φ, and e φ = g: in units of (√2π)^m it is Σ scaled^(m-2) g g; one factor √2π is left over
        half_line = (g * scaled ** (m - 2)) @ g.T * SQRT_2PI
        lost = np.exp(-(difference**2) / (2 * m)) / np.sqrt(m) - half_line
        values, vectors = np.linalg.eigh(lost)
        strongest = np.argsort(-np.abs(values))
        features.append((vectors * np.sqrt(np.abs(values)))[:, strongest])
        signs.append(np.sign(values[strongest]))
        traces.append((length / np.sqrt(m) - SQRT_2PI * np.sum(scaled**m)) / 2)
    rank = max(int(np.sum(np.max(f**2, axis=0) > 1e-14)) for f in features)
    coefficients = np.stack([(to_series @ f[:, :rank]).T for f in features])
    return EdgeCorrections(reach, coefficients, np.stack([s[:rank] for s in signs]), np.array(traces))

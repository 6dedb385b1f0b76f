"""The paper's continuous Gaussian model on R^D: eigenvalues, eigenfunctions and exact normalisers.

L = ContinuousGaussian has the eigenvalues λ_n = α ∏_d (1-r_d) r_d^{n_d}, degrees n_d ≥ 0, with
r_d = exp(-arccosh(1 + γ_d)), γ_d = (σ_d/ρ_d)², and the eigenfunctions φ_n(x) = ∏ √(β_d/ρ_d) ψ_{n_d}(β_d x_d/ρ_d),
β_d = (1 + 2/γ_d)^(1/4), ψ the Hermite functions: equation (E5) of the errata in a form without cancellation.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Int

from dpplearn.kernels import ContinuousGaussian
from dpplearn.linalg import log_volume

HEAD = 0.25  # eigenvalues above this are summed one by one, those below by power sums
POWERS = 28  # ¼^28 is under round-off
BLOCK = 512


class Spectrum(NamedTuple):
    """Eigenvalues exp(log_top + Σ n_d log_ratio_d); one ratio with multiplicities C(n+D-1, D-1) if isotropic."""

    log_top: Float[Array, ""]
    log_ratio: Float[Array, " d"]
    dim: int  # D; the length of log_ratio is 1 for an isotropic kernel and D otherwise


def spectrum(kernel: ContinuousGaussian, dim: int) -> Spectrum:
    """The eigenvalues of the kernel on R^dim."""
    gamma = jnp.atleast_1d((kernel.sigma / kernel.rho) ** 2)
    log_ratio = -jnp.log1p(gamma + jnp.sqrt(gamma * (gamma + 2)))
    repeats = dim // len(gamma)
    log_top = jnp.log(kernel.alpha) + repeats * jnp.sum(jnp.log(-jnp.expm1(log_ratio)))
    return Spectrum(log_top, log_ratio, dim)


def _level_multiplicity(n: Int[Array, "..."], dim: int) -> Float[Array, "..."]:
    """C(n+D-1, D-1), the number of multi-indices of total degree n."""
    value = jnp.ones(n.shape)
    for i in range(1, dim):
        value = value * (n + i) / i
    return value


def _head_extent(z: Inexact[Array, " j"], spec: Spectrum) -> Int[Array, " d"]:
    """Per dimension, the number of degrees whose eigenvalue may exceed HEAD: the head is the box of them."""
    log_largest = spec.log_top + jnp.log(jnp.max(jnp.abs(z)) / HEAD)
    extent = jnp.ceil(jnp.maximum(log_largest / -spec.log_ratio, 0.0))
    return jax.lax.stop_gradient(extent).astype(int)


def _head_sums(z, log_top, log_ratio, extent, dim):
    """Σ over the head of log(1+zλ), zλ/(1+zλ) and n_d zλ/(1+zλ), in blocks: any number of eigenvalues."""
    isotropic = len(log_ratio) < dim
    total = jnp.prod(extent)
    strides = jnp.concatenate([jnp.ones(1, int), jnp.cumprod(extent)[:-1]])

    def add_block(i, sums):
        flat = i * BLOCK + jnp.arange(BLOCK)
        degrees = (flat[:, None] // strides) % jnp.maximum(extent, 1)
        weight = (flat < total) * (_level_multiplicity(flat, dim) if isotropic else 1.0)
        scaled = z[:, None] * jnp.exp(log_top + degrees @ log_ratio)
        p = scaled / (1 + scaled)
        terms = _weighted_log(z, scaled, weight, isotropic), p @ weight, (p * weight) @ degrees
        return jax.tree.map(jnp.add, sums, terms)

    start = jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros((len(z), len(log_ratio)), z.dtype)
    return jax.lax.fori_loop(0, -(-total // BLOCK), add_block, start)


def _weighted_log(z, scaled, weight, isotropic):
    """Σ weight log(1 + z λ). For |z| = 1 and weights 0 and 1 one logarithm of a product serves a block.

    1 + zλ = (1 + λ)(1 - p + z p), p = λ/(1+λ): the factors of the product have modulus at most 1.
    """
    if isotropic or not jnp.iscomplexobj(z):
        return jnp.log1p(scaled) @ weight
    size = jnp.abs(scaled[0]) * weight
    p = size / (1 + size)
    return jnp.sum(jnp.log1p(size)) + jnp.log(jnp.prod(1 - p + z[:, None] * p, axis=1))


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _head(log_top, log_ratio, z, extent, dim):
    return _head_sums(z, log_top, log_ratio, extent, dim)[0]


@_head.defjvp
def _head_jvp(dim, primals, tangents):
    # the loop has no static length, so its derivative is summed in the same pass instead of taped;
    # z and the extent of the head are constants
    log_top, log_ratio, z, extent = primals
    value, p_sum, degree_sum = _head_sums(z, log_top, log_ratio, extent, dim)
    return value, p_sum * tangents[0] + degree_sum @ tangents[1].astype(z.dtype)


def _tail_power_sums(spec: Spectrum, extent: Int[Array, " d"]) -> Float[Array, " POWERS"]:
    """Σ λ^m over all degrees outside the head, m = 1 … POWERS, by geometric series of positive terms."""
    m = jnp.arange(1, POWERS + 1)
    log_x = m[:, None] * spec.log_ratio  # r_d^m
    one_minus_x = -jnp.expm1(log_x)
    if len(spec.log_ratio) < spec.dim:  # isotropic: levels from `extent` on with their multiplicities
        n0, log_x, one_minus_x = extent[0], log_x[:, 0], one_minus_x[:, 0]
        ways = [_binomial(n0 + spec.dim - 1, spec.dim - 1 - i) for i in range(spec.dim)]
        series = sum(w * jnp.exp(i * log_x) / one_minus_x ** (i + 1) for i, w in enumerate(ways))
        return jnp.exp(m * (spec.log_top + n0 * spec.log_ratio[0])) * series
    # in one exponent: under the tilt of a k-DPP the top alone may be beyond the largest float
    outside = jnp.exp(m[:, None] * spec.log_top + extent * log_x) / one_minus_x
    inside = -jnp.expm1(extent * log_x) / one_minus_x
    series = jnp.zeros(POWERS)
    for d in range(spec.dim):  # n_e inside the head for e < d, n_d outside, the others free
        series = series + jnp.prod(inside[:, :d], 1) * outside[:, d] / jnp.prod(one_minus_x[:, d + 1 :], 1)
    return series


def _binomial(n: Int[Array, ""], k: int) -> Float[Array, ""]:
    value = jnp.ones(())
    for i in range(k):
        value = value * (n - i) / (i + 1)
    return value


def log_fredholm(z: Inexact[Array, " j"], spec: Spectrum) -> Inexact[Array, " j"]:
    """log det(1 + zL) = Σ log(1 + z λ_n), head plus power sums, for real z ≥ 0 or complex z of modulus 1."""
    z = jax.lax.stop_gradient(jnp.asarray(z))
    extent = _head_extent(z, spec)
    m = jnp.arange(1, POWERS + 1)
    sums = _tail_power_sums(spec, extent)
    # (z λ)^m is formed in one exponent: |z| alone may be large
    tail = -jnp.sum(jnp.where(sums > 0, (-z[:, None]) ** m * sums / m, 0.0), axis=1)
    return _head(spec.log_top, spec.log_ratio, z, extent, spec.dim) + tail


def log_normalizer(kernel: ContinuousGaussian, dim: int) -> Float[Array, ""]:
    """log ∏ (1 + λ_n), the normaliser of the DPP on R^dim."""
    return log_fredholm(jnp.ones(1), spectrum(kernel, dim))[0]


def expected_size(kernel: ContinuousGaussian, dim: int) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E|A| = Σ λ/(1+λ) and Var|A| = Σ λ/(1+λ)²: the first two derivatives of log Z in log α."""
    spec = spectrum(kernel, dim)

    def mean(shift):
        return jax.jvp(
            lambda t: log_fredholm(jnp.ones(1), spec._replace(log_top=spec.log_top + t))[0], (shift,), (1.0,)
        )[1]

    return jax.jvp(mean, (0.0,), (1.0,))


def log_normalizer_fixed_size(kernel: ContinuousGaussian, dim: int, size: int) -> Float[Array, ""]:
    """log e_k(λ) of the k-DPP on R^dim, k = size, by a Fourier sum over a circle (`circle_log_esp`)."""
    spec = spectrum(kernel, dim)

    def fredholm(log_r, phases):
        return log_fredholm(phases, spec._replace(log_top=spec.log_top + log_r))

    log_r = tilt_by_newton(lambda x: fredholm(x, jnp.ones(1))[0], jnp.log(size) - jnp.log(kernel.alpha), size)
    return circle_log_esp(lambda phases: fredholm(log_r, phases), log_r, size)


def circle_log_esp(fredholm, log_r: Float[Array, ""], size: int) -> Float[Array, ""]:
    """log e_k = log mean_j exp(log det(1 + R e^{iθ_j} L) - i k θ_j) - k log R, k = size.

    `fredholm(phases)` is log det(1 + R e^{iθ} L); R makes the expected size k, so the terms neither cancel
    nor overflow. J ≥ k + 20 sd + 64 angles make the sum exact to round-off; conjugates are used once.
    """
    half = int(np.ceil((size + 20 * np.sqrt(size) + 64) / 2))
    angle = np.arange(half + 1)
    theta = np.pi * angle / half
    weight = np.where(angle % half == 0, 1.0, 2.0) / (2 * half)
    values = fredholm(jnp.exp(1j * theta)) - 1j * size * theta
    peak = jax.lax.stop_gradient(values[0].real)
    return jnp.log(jnp.sum(weight * jnp.exp(values - peak).real)) + peak - size * log_r


def tilt_by_newton(log_fredholm_at, low: Float[Array, ""], size: int) -> Float[Array, ""]:
    """log R at which d log det(1 + R L) / d log R, the expected size, is `size` to within 0.01.

    `low` is a value at which it is smaller; Newton steps stay inside a growing bracket. log R is a constant
    to the derivative: the formula it is used in holds for every R.
    """

    def mean(x):
        return jax.jvp(log_fredholm_at, (x,), (jnp.ones_like(x),))[1]

    def unsettled(state):
        _, _, _, error, i = state
        return (jnp.abs(error) > 0.01) & (i < 200)

    def improve(state):
        low, high, x, _, i = state
        value, slope = jax.jvp(mean, (x,), (jnp.ones_like(x),))
        error = value - size
        low, high = jnp.where(error < 0, x, low), jnp.where(error < 0, high, x)
        newton = x - error / slope
        fallback = jnp.where(jnp.isfinite(high), (low + high) / 2, low + 2.0)
        ok = (newton > low) & (newton < jnp.minimum(high, low + 8.0))
        return low, high, jnp.where(ok, newton, fallback), error, i + 1

    low = jax.lax.stop_gradient(low)
    start = (low - 1.0, jnp.full_like(low, jnp.inf), low, jnp.full_like(low, jnp.inf), 0)
    return jax.lax.stop_gradient(jax.lax.while_loop(unsettled, improve, start)[2])


def hermite_functions(z: Float[Array, " n"], count: int) -> Float[Array, "count n"]:
    """ψ_0 … ψ_{count-1} at z, orthonormal on R, by the normalised recurrence with a running log scale.

    Without the scale the recurrence underflows past |z| = 38 and never recovers.
    """

    def next_degree(state, n):
        current, previous, log_scale = state
        value = z * jnp.sqrt(2 / (n + 1)) * current - jnp.sqrt(n / (n + 1)) * previous
        scale = jnp.maximum(jnp.maximum(jnp.abs(value), jnp.abs(current)), 1e-300)
        return (value / scale, current / scale, log_scale + jnp.log(scale)), current * jnp.exp(log_scale)

    start = (jnp.ones_like(z), jnp.zeros_like(z), -0.25 * jnp.log(jnp.pi) - z**2 / 2)
    return jax.lax.scan(next_degree, start, jnp.arange(count, dtype=z.dtype))[1]


@cache
def largest_modes(count: int, dim: int) -> np.ndarray:
    """Multi-indices that contain the `count` largest products ∏ r_d^{n_d} for every r: those with ∏(n_d+1) ≤ count."""
    if dim == 1:
        return np.arange(count)[:, None]
    rows = [(*rest, n) for n in range(count) for rest in _tuples(largest_modes(count // (n + 1), dim - 1))]
    degrees = np.array(rows)
    return degrees[np.argsort(degrees.sum(axis=1), kind="stable")]


def _tuples(array: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in array]


def eigenfunctions(kernel: ContinuousGaussian, points: Float[Array, "n D"], degrees: Int[Array, "m D"], count: int):
    """φ_n(x_i) as an array (m, n) for the multi-indices in `degrees`, all below `count`."""
    rho, sigma = jnp.broadcast_arrays(jnp.asarray(kernel.rho), jnp.asarray(kernel.sigma))
    scale = jnp.broadcast_to((1 + 2 * (rho / sigma) ** 2) ** 0.25 / rho, points.shape[1:])
    value = jnp.ones((len(degrees), len(points)))
    for d in range(points.shape[1]):
        z = (points[:, d] - jnp.broadcast_to(kernel.center, points.shape[1:])[d]) * scale[d]
        value = value * (jnp.sqrt(scale[d]) * hermite_functions(z, count))[degrees[:, d]]
    return value


def log_det_by_modes(kernel: ContinuousGaussian, points: Float[Array, "n D"], mask) -> tuple[Array, Array]:
    """log det L_A from the eigenfunctions, for sets whose Cholesky loses its digits (towards the flat limit).

    Rows √λ_n φ_n(x_i) in decreasing λ, a column-pivoted QR, and twice the modes until the value stands still;
    also whether it did.
    """
    n, dim = points.shape
    spec = spectrum(kernel, dim)
    log_ratio = jnp.broadcast_to(spec.log_ratio, (dim,))
    log_top = jnp.where(jnp.any(mask), spec.log_top, 0.0)

    def value(count: int):
        degrees = largest_modes(count, dim)
        order = jnp.argsort(-(degrees @ log_ratio), descending=False, stable=True)[:count]
        degrees = jnp.asarray(degrees)[order]
        tall = jnp.exp(0.5 * (log_top + degrees @ log_ratio))[:, None] * eigenfunctions(kernel, points, degrees, count)
        # padded columns get rows of their own, longer than all others; a QR keeps its digits row by row only
        # where rows come in decreasing length
        tall = jnp.where(mask, tall, 0.0)
        longest = jax.lax.stop_gradient(1 + 2 * jnp.linalg.norm(tall))
        rows = jnp.concatenate([tall, jnp.diag(jnp.where(mask, 0.0, longest))])
        rows = rows[jnp.argsort(-jnp.max(jnp.abs(rows), axis=1))]
        return log_volume(rows) - 2 * jnp.sum(~mask) * jnp.log(longest)

    counts = [max(40, n + n // 4) * 2**i for i in range(4 if n <= 64 and dim <= 2 else 3)]
    first, second = value(counts[0]), value(counts[1])
    for count in counts[2:]:
        settled = _stands_still(first, second)
        nothing_more = lambda first=first, second=second: (first, second)  # noqa: E731
        more = lambda second=second, count=count: (second, value(count))  # noqa: E731
        first, second = jax.lax.cond(settled, nothing_more, more)
    return second, _stands_still(first, second)


def _stands_still(first, second):
    return jnp.abs(first - second) <= 1e-10 * (1 + jnp.abs(second))

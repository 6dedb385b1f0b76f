"""Masked log-determinants with the trace-form gradient, log elementary symmetric polynomials."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Bool, Float

# A Cholesky factor of a unit-diagonal matrix whose smallest pivot lies under this has lost about half its digits.
SMALLEST_PIVOT = 1e-8


def log_det(
    matrix: Float[Array, "n n"], mask: Bool[Array, " n"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """log det of the rows and columns in `mask`, and the smallest Cholesky pivot (the rest is pinned to the identity).

    NaN where the Cholesky factorisation fails. The gradient is the trace form, tr(K⁻¹ dK).
    """
    mask = jnp.ones(len(matrix), bool) if mask is None else mask
    value, pivot = log_dets(matrix[None], mask[None])
    return value[0], pivot[0]


def log_dets(
    matrices: Float[Array, "T n n"], masks: Bool[Array, "T n"]
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """`log_det` of each matrix: values and smallest pivots.

    The factorisations run one after the other, never as batched LAPACK: JAX's batched calls wait for workers of
    the pool that runs them, and two programs at once (our chains) can wait for each other for ever.
    """
    pinned = jnp.where(masks[:, :, None] & masks[:, None, :], matrices, jnp.eye(matrices.shape[1]))
    return _log_dets(pinned)


@jax.custom_jvp
def _log_dets(matrices: Float[Array, "T n n"]) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    pivots = jax.lax.map(lambda m: jnp.diagonal(jnp.linalg.cholesky(m, symmetrize_input=False)), matrices)
    return 2 * jnp.sum(jnp.log(pivots), axis=1), jnp.min(pivots, axis=1) ** 2


@_log_dets.defjvp
def _log_dets_jvp(primals, tangents):
    # d log det K = tr(K⁻¹ dK): a third of the cost of differentiating through the factorisation
    def factorise(matrix):
        chol = jnp.linalg.cholesky(matrix, symmetrize_input=False)
        return jnp.diagonal(chol), jsl.cho_solve((chol, True), jnp.eye(len(matrix), dtype=matrix.dtype))

    pivots, inverses = jax.lax.map(factorise, primals[0])
    value = 2 * jnp.sum(jnp.log(pivots), axis=1), jnp.min(pivots, axis=1) ** 2
    return value, (jnp.sum(inverses * tangents[0], axis=(1, 2)), jnp.zeros_like(value[1]))


@jax.custom_jvp
def log_volume(tall: Float[Array, "m n"]) -> Float[Array, ""]:
    """log det(BᵀB) of a tall matrix by a column-pivoted QR: keeps the digits that BᵀB itself loses."""
    _, r, _ = jsl.qr(tall, mode="economic", pivoting=True)
    return 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r))))


@log_volume.defjvp
def _log_volume_jvp(primals, tangents):
    # d log det(BᵀB) = 2 tr(B⁺ dB), and B⁺ = P R⁻¹ Qᵀ
    (tall,), (d_tall,) = primals, tangents
    q, r, permutation = jsl.qr(tall, mode="economic", pivoting=True)
    value = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r))))
    pinv_t = jnp.zeros_like(tall).at[:, permutation].set(jsl.solve_triangular(r, q.T).T)
    return value, 2 * jnp.sum(pinv_t * d_tall)


def log_tilt(eigenvalues: Float[Array, " n"], size: int) -> Float[Array, ""]:
    """log R with Σ Rλ/(1+Rλ) = size to within 0.01: the DPP with kernel R·L has about `size` points.

    A bracketed Newton iteration; where fewer than `size` eigenvalues are positive it stops at its upper end.
    """
    log_lambda = jnp.log(eigenvalues)
    total = jnp.sum(eigenvalues)
    low = jnp.log(size) - jnp.log(jnp.where(total > 0, total, 1.0))
    high = jnp.maximum(-jnp.min(jnp.where(eigenvalues > 0, log_lambda, jnp.inf)) + 40.0, low + 1.0)

    def excess(x):
        p = jax.nn.sigmoid(x + log_lambda)
        return jnp.sum(p) - size, jnp.sum(p * (1 - p))

    def unsettled(state):
        _, _, _, error, i = state
        return (jnp.abs(error) > 0.01) & (i < 100)

    def improve(state):
        low, high, x, _, i = state
        error, slope = excess(x)
        low, high = jnp.where(error < 0, x, low), jnp.where(error < 0, high, x)
        newton = x - error / slope
        inside = (newton > low) & (newton < high)
        return low, high, jnp.where(inside, newton, (low + high) / 2), error, i + 1

    start = (low, high, low, jnp.full_like(low, jnp.inf), 0)
    return jax.lax.while_loop(unsettled, improve, start)[2]


def _count_probabilities(p: Float[Array, " n"], size: int) -> Float[Array, "m k"]:
    """Row i: probabilities of j = 0 … size successes among the first i of independent trials (rows 0 … n)."""

    def add_trial(row, p_i):
        shifted = jnp.concatenate([jnp.zeros_like(row[:1]), row[:-1]])
        return (1 - p_i) * row + p_i * shifted, row

    start = jnp.zeros(size + 1, p.dtype).at[0].set(1.0)
    last, rows = jax.lax.scan(add_trial, start, p)
    return jnp.concatenate([rows, last[None]])


def _log_esp_and_gradient(eigenvalues: Float[Array, " n"], size: int):
    log_r = log_tilt(eigenvalues, size)
    scaled = jnp.exp(log_r + jnp.log(eigenvalues))
    p = scaled / (1 + scaled)
    forward = _count_probabilities(p, size)
    backward = _count_probabilities(p[::-1], size)[::-1]  # row i: successes among the trials from i on
    p_size = forward[-1, size]
    value = jnp.log(p_size) + jnp.sum(jnp.log1p(scaled)) - size * log_r
    # P(size-1 successes among all trials but the i-th), a sum of positive terms
    others = jnp.sum(forward[:-1, :size] * backward[1:, :size][:, ::-1], axis=1)
    return value, others / p_size * jnp.exp(log_r) / (1 + scaled)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_esp(eigenvalues: Float[Array, " n"], size: int) -> Float[Array, ""]:
    """log e_k(λ), k = size, for λ ≥ 0 (maths: E10); -inf where fewer than k eigenvalues are positive.

    e_k = P(k successes) ∏(1+Rλ_i) R^-k for independent trials with p_i = Rλ_i/(1+Rλ_i), for every R > 0. With
    R such that Σp_i = k that probability is of order 1/√k, so its recursion of positive terms neither over-
    nor underflows. Both the value and the gradient P(k-1 successes without i)/… are sums of positive terms.
    """
    log_r = log_tilt(eigenvalues, size)
    scaled = jnp.exp(log_r + jnp.log(eigenvalues))

    def add_trial(i, row):
        p_i = scaled[i] / (1 + scaled[i])
        return (1 - p_i) * row + p_i * jnp.concatenate([jnp.zeros_like(row[:1]), row[:-1]])

    row = jnp.zeros(size + 1, eigenvalues.dtype).at[0].set(1.0)
    p_size = jax.lax.fori_loop(0, len(eigenvalues), add_trial, row)[size]
    return jnp.log(p_size) + jnp.sum(jnp.log1p(scaled)) - size * log_r


@log_esp.defjvp
def _log_esp_jvp(size, primals, tangents):
    value, gradient = _log_esp_and_gradient(primals[0], size)
    return value, jnp.sum(gradient * tangents[0])


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_esp_of_matrix(matrix: Float[Array, "n n"], size: int) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """log e_k of the eigenvalues of a PSD matrix, and an estimate of its round-off, eps λ₁ Σ ∂log e_k/∂λ_i.

    Its gradient, Σ_i (∂log e_k/∂λ_i) v_iᵀ dL v_i, needs no derivative of an eigenvector, so it is finite
    on grids whose spectrum repeats. Eigenvalues that round-off made negative count as 0: the estimate covers it.
    """
    eigenvalues = jnp.maximum(jnp.linalg.eigvalsh(matrix, symmetrize_input=False), 0.0)
    value, gradient = _log_esp_and_gradient(eigenvalues, size)
    return value, jnp.finfo(value.dtype).eps * eigenvalues[-1] * jnp.sum(gradient)


@log_esp_of_matrix.defjvp
def _log_esp_of_matrix_jvp(size, primals, tangents):
    eigenvalues, vectors = jnp.linalg.eigh(primals[0], symmetrize_input=False)
    eigenvalues = jnp.maximum(eigenvalues, 0.0)
    value, gradient = _log_esp_and_gradient(eigenvalues, size)
    round_off = jnp.finfo(value.dtype).eps * eigenvalues[-1] * jnp.sum(gradient)
    d_value = jnp.sum((vectors * gradient) @ vectors.T * tangents[0])
    return (value, round_off), (d_value, jnp.zeros_like(round_off))

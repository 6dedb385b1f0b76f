"""The set term of the likelihood, log det L_A, one function per domain; sets are padded and masked.

log det L_A = 2 Σ log q + log det k_A (9), so digits are judged on the unit-diagonal k_A. Each function returns
the value per set and whether it lost its digits: a Cholesky pivot under 1e-8, or a factorisation that failed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpplearn.kernels import AnyArray, ContinuousGaussian, log_qualities, similarity_matrix
from dpplearn.linalg import SMALLEST_PIVOT, log_dets
from dpplearn.spectra import real_space

SetTerms = tuple[Float[Array, " T"], Bool[Array, " T"]]


def log_det_items(
    kernel: Any, items: Float[AnyArray, "N D"], index: Int[AnyArray, "T k"], k: Float[Array, "N N"]
) -> SetTerms:
    """log det L_A for subsets A of the items, `k` the similarity of all items."""
    items, mask = jnp.asarray(items), jnp.asarray(index >= 0)
    log_q = jnp.where(mask, log_qualities(kernel, items)[index], 0.0)
    log_det_k, pivots = log_dets(k[index[:, :, None], index[:, None, :]], mask)
    return 2 * jnp.sum(log_q, axis=1) + log_det_k, ~(pivots >= SMALLEST_PIVOT)


def log_det_points(kernel: Any, points: Float[AnyArray, "T n D"], mask: Bool[AnyArray, "T n"]) -> SetTerms:
    """log det L_A for sets of points, by a Cholesky factorisation of k_A."""
    values, pivots = _by_cholesky(kernel, points, mask)
    return values, ~(pivots >= SMALLEST_PIVOT)


def log_det_real_space(
    kernel: ContinuousGaussian, points: Float[AnyArray, "T n D"], mask: Bool[AnyArray, "T n"]
) -> SetTerms:
    """log det L_A on R^D: by Cholesky, and towards the flat limit from the eigenfunctions (24)."""
    values, pivots = _by_cholesky(kernel, points, mask)

    def one_set(value, pivot, points, mask):
        def keep():
            return value, jnp.zeros((), bool)

        def by_modes():
            better, is_settled = real_space.log_det_by_modes(kernel, points, mask)
            return better, ~is_settled

        return jax.lax.cond(pivot >= SMALLEST_PIVOT, keep, by_modes)

    # a scan, not a vmap: only the sets that need their modes pay for them
    return jax.lax.map(lambda args: one_set(*args), (values, pivots, points, mask))


def _by_cholesky(kernel, points, mask):
    log_q = jnp.where(mask, jax.vmap(lambda x: log_qualities(kernel, x))(points), 0.0)
    log_det_k, pivots = log_dets(jax.vmap(lambda x: similarity_matrix(kernel, x))(points), jnp.asarray(mask))
    return 2 * jnp.sum(log_q, axis=1) + log_det_k, pivots

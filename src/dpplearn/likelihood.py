"""The set term of the likelihood, log det L_A, one function per domain; sets are padded and masked.

log det L_A = 2 Σ log q + log det k_A (9), so digits are judged on the unit-diagonal k_A. Each function returns
the value per set and whether it lost its digits: a Cholesky pivot under 1e-8, or a factorisation that failed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpplearn.kernels import ContinuousGaussian, log_qualities, similarity_matrix
from dpplearn.linalg import SMALLEST_PIVOT, log_det
from dpplearn.spectra import real_space

SetTerms = tuple[Float[Array, " T"], Bool[Array, " T"]]


def log_det_items(kernel: Any, items: Float[Array, "N D"], index: Int[Array, "T k"]) -> SetTerms:
    """log det L_A for subsets A of the items."""
    return log_det_points(kernel, items[index], index >= 0)


def log_det_points(kernel: Any, points: Float[Array, "T n D"], mask: Bool[Array, "T n"]) -> SetTerms:
    """log det L_A for sets of points, by a Cholesky factorisation of k_A."""
    values, pivots = _by_cholesky(kernel, points, mask)
    return values, ~(pivots >= SMALLEST_PIVOT)


def log_det_real_space(kernel: ContinuousGaussian, points: Float[Array, "T n D"], mask: Bool[Array, "T n"]) -> SetTerms:
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
    def one_set(points, mask):
        log_q = jnp.sum(jnp.where(mask, log_qualities(kernel, points), 0.0))
        log_det_k, pivot = log_det(similarity_matrix(kernel, points), mask)
        return 2 * log_q + log_det_k, pivot

    return jax.vmap(one_set)(points, mask)

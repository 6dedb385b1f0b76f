"""log Z, the normaliser of a DPP or k-DPP, as Bounds(lower, upper) at a rung of a ladder.

Everything here is exact, a ladder of one rung, where lower and upper are the same number.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpplearn.kernels import AnyArray, ContinuousGaussian, Uniform, log_qualities, similarity_matrix
from dpplearn.linalg import log_det, log_esp_of_matrix
from dpplearn.spectra import real_space, window

# A normaliser of a k-DPP whose round-off may exceed this is reported like a set that lost its digits.
LARGEST_ROUND_OFF = 1e-8


class Bounds(NamedTuple):
    """lower ≤ value ≤ upper; equal where the value is known."""

    lower: Float[Array, "*shape"]
    upper: Float[Array, "*shape"]


def l_matrix(kernel: Any, items: Float[AnyArray, "N D"], k: Float[Array, "N N"] | None = None) -> Float[Array, "N N"]:
    """L_ij = q_i k_ij q_j on all items (3); `k` their similarity where it is known."""
    items = jnp.asarray(items)
    q = jnp.exp(log_qualities(kernel, items))
    return q[:, None] * (similarity_matrix(kernel, items) if k is None else k) * q[None, :]


def log_z_items(
    kernel: Any, items: Float[AnyArray, "N D"], size: int | None, k: Float[Array, "N N"] | None = None
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """log det(I + L) (7), or log e_k(λ) (8) for a k-DPP, and whether its digits are lost."""
    matrix = l_matrix(kernel, items, k)
    if size is None:
        return log_det(jnp.eye(len(matrix)) + matrix)[0], jnp.zeros((), bool)
    value, round_off = log_esp_of_matrix(matrix, size)
    return value, ~(round_off <= LARGEST_ROUND_OFF)


def log_z_real_space(kernel: ContinuousGaussian, dim: int, size: int | None) -> Float[Array, ""]:
    """log ∏ (1 + λ_n) on R^D (19), or log e_k(λ) (32)."""
    if size is None:
        return real_space.log_normalizer(kernel, dim)
    return real_space.log_normalizer_fixed_size(kernel, dim, size)


def log_z_windows(
    kernel: Uniform, windowed: window.Windowed, size: int | None
) -> tuple[Float[Array, " W"], Bool[Array, " W"]]:
    """log det(I + L) of the kernel living on each window (25), or log e_k(λ), and whether its digits are lost."""
    if size is None:
        value = window.uniform_log_normalizer(kernel, windowed)
        return value, jnp.zeros(value.shape, bool)
    value, round_off = window.uniform_log_normalizer_fixed_size(kernel, windowed, size)
    return value, ~(round_off <= LARGEST_ROUND_OFF)

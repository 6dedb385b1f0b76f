"""DPP kernels as quality times similarity, L(x, y) = q(x) k(x, y) q(y), in frozen pytrees.

A kernel speaks of single points: `log_quality(x)` and `similarity(x, y)` with k(x, x) = 1. The two
functions at the end lift it to a whole set, the one place where points are vmapped over. A plain
function L(x, y) is a kernel too. `Stationary` is the exception: it is the *marginal* kernel K of a
process, and L follows from K and the window (`dpplearn.spectra`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Scale = Float[Array, ""] | Float[Array, " D"] | float
Point = Float[Array, " D"]
AnyArray = Array | np.ndarray  # on the host or in a compiled program
FEW_DIMENSIONS = 8


def _gaussian(difference: Point, length: Scale) -> Float[Array, ""]:
    """exp(-½ Σ (difference/length)²)."""
    z = difference * (np.sqrt(0.5) / length)  # one division for all pairs
    # a sum over a short axis would keep the compiler from vectorising the rest
    return jnp.exp(-(sum(z[d] ** 2 for d in range(len(z))) if len(z) <= FEW_DIMENSIONS else jnp.sum(z**2)))


def _kernel(cls: type) -> Any:
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@_kernel
class Gaussian:
    """Gaussian quality and similarity on items; sigma and gamma are squared lengths, one or one per dimension.

    q(x) = √alpha exp(-½ xᵀΓ⁻¹x), k(x, y) = exp(-½ (x-y)ᵀΣ⁻¹(x-y)); uniform quality where gamma is None.
    """

    sigma: Scale
    gamma: Scale | None = None
    alpha: Scale = 1.0

    def log_quality(self, x: Point) -> Float[Array, ""]:
        log_amplitude = 0.5 * jnp.log(self.alpha)
        return log_amplitude if self.gamma is None else log_amplitude - 0.5 * jnp.sum(x**2 / self.gamma)

    def similarity(self, x: Point, y: Point) -> Float[Array, ""]:
        return _gaussian(x - y, jnp.sqrt(self.sigma))


@_kernel
class ContinuousGaussian:
    """The paper's kernel on R^D; rho and sigma are lengths, tr L = alpha.

    q(x) = √alpha ∏ (πρ_d²)^(-1/4) exp(-(x_d-μ_d)²/(2ρ_d²)), k(x, y) = ∏ exp(-(x_d-y_d)²/(2σ_d²)).
    """

    alpha: Scale
    rho: Scale
    sigma: Scale
    center: Scale = 0.0

    def log_quality(self, x: Point) -> Float[Array, ""]:
        z = (x - self.center) / self.rho
        log_norm = 0.25 * jnp.sum(jnp.broadcast_to(jnp.log(jnp.pi * self.rho**2), x.shape))
        return 0.5 * jnp.log(self.alpha) - log_norm - 0.5 * jnp.sum(z**2)

    def similarity(self, x: Point, y: Point) -> Float[Array, ""]:
        return _gaussian(x - y, self.sigma)


@_kernel
class Uniform:
    """Uniform quality on a window: L(x, y) = alpha ∏ exp(-(x_d-y_d)²/(2σ_d²)); sigma is a length."""

    alpha: Scale
    sigma: Scale

    def log_quality(self, x: Point) -> Float[Array, ""]:
        return 0.5 * jnp.log(self.alpha) + 0.0 * jnp.sum(x)

    def similarity(self, x: Point, y: Point) -> Float[Array, ""]:
        return _gaussian(x - y, self.sigma)


@_kernel
class Stationary:
    """A stationary Gaussian DPP by its marginal kernel K(x, y) = intensity exp(-‖x-y‖²/(2σ²)).

    It exists for repulsion = intensity (2πσ²)^(D/2) ≤ 1: 0 is Poisson, 1 the most this family can have.
    """

    intensity: Scale
    sigma: Scale


@_kernel
class _FromFunction:
    """L(x, y) given as a plain function, split into q(x) = √L(x, x) and k = L / (q q)."""

    function: Callable[[Point, Point], Float[Array, ""]] = dataclasses.field(metadata={"static": True})

    def log_quality(self, x: Point) -> Float[Array, ""]:
        return 0.5 * jnp.log(self.function(x, x))

    def similarity(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.function(x, y) * jnp.exp(-self.log_quality(x) - self.log_quality(y))


def as_kernel(kernel: Any) -> Any:
    """A kernel object as it is; a plain function L(x, y) wrapped into one."""
    return kernel if hasattr(kernel, "similarity") or isinstance(kernel, Stationary) else _FromFunction(function=kernel)


def log_qualities(kernel: Any, points: Float[Array, "n D"]) -> Float[Array, " n"]:
    """log q(x_i) for a set of points."""
    return jax.vmap(as_kernel(kernel).log_quality)(points)


def similarity_matrix(kernel: Any, points: Float[Array, "n D"]) -> Float[Array, "n n"]:
    """k(x_i, x_j) for a set of points: unit diagonal."""
    similarity = as_kernel(kernel).similarity
    return jax.vmap(lambda x: jax.vmap(lambda y: similarity(x, y))(points))(points)

"""The posterior density of a model as one compiled function of an unconstrained vector.

A `Problem` is what compiled code needs: the priors and the data are leaves of a pytree and travel as
arguments, never as constants (a captured data set compiles anew each time).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions import Distribution, ExpandedDistribution, biject_to, constraints
from numpyro.distributions.transforms import AffineTransform, Transform

from dpplearn import likelihood, normalizer
from dpplearn.kernels import AnyArray, ContinuousGaussian, Stationary, Uniform, similarity_matrix
from dpplearn.linalg import SMALLEST_PIVOT
from dpplearn.normalizer import Bounds
from dpplearn.spectra import window

Params = dict[str, Float[Array, "..."]]
# a tuple where the components of one parameter have priors of their own
Priors = dict[str, Distribution | tuple[Distribution, ...]]


class OnItems(NamedTuple):
    """Subsets of a base set."""

    items: Float[AnyArray, "N D"]
    members: Int[AnyArray, "T k"]


class OnRealSpace(NamedTuple):
    """Point patterns on R^D."""

    points: Float[AnyArray, "T n D"]
    mask: Bool[AnyArray, "T n"]


Observed = OnItems | OnRealSpace | window.Windowed | window.BySize


@dataclass(frozen=True)
class Problem:
    """Priors, kernel and data of a model: a pytree whose leaves are the priors and the data."""

    priors: Priors
    observed: Observed
    build_kernel: Callable[[Params], Any]
    size: int | None


def _flatten(problem: Problem):
    """The leaves of the priors in an order of their names, the same in every process.

    NumPyro lists a distribution's parameters as a set has them, and that order changes from process to process: the
    compiler would see another program each time, and its cache on disk would never be hit.
    """
    leaves, shape = jax.tree.flatten(problem.priors)
    order = list(_by_name(jax.tree.unflatten(shape, range(len(leaves)))))
    static = (shape, tuple(order), problem.build_kernel, problem.size)
    return ([leaves[i] for i in order], problem.observed), static


def _by_name(tree: Any) -> Iterator[int]:
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Distribution)):
        if isinstance(node, Distribution):
            for field in sorted(type(node).gather_pytree_data_fields()):
                yield from _by_name(vars(node).get(field))
        else:
            yield node


def _unflatten(static: tuple, children: tuple) -> Problem:
    (shape, order, build_kernel, size), (ordered, observed) = static, children
    leaves: list[Any] = [None] * len(order)
    for i, leaf in zip(order, ordered, strict=True):
        leaves[i] = leaf
    return Problem(jax.tree.unflatten(shape, leaves), observed, build_kernel, size)


jax.tree_util.register_pytree_node(Problem, _flatten, _unflatten)


def prior_length(prior: Distribution | tuple[Distribution, ...]) -> int:
    """How many numbers a prior is for."""
    return len(prior) if isinstance(prior, tuple) else int(np.prod(prior.batch_shape, dtype=int))


def dimension(priors: Priors) -> int:
    """The length of the unconstrained vector."""
    return sum(map(prior_length, priors.values()))


def _slots(priors: Priors) -> Iterator[tuple[str, Any, slice]]:
    """Each parameter's place in the unconstrained vector: by name, since compiled code sees every dict sorted."""
    start = 0
    for name in sorted(priors):
        length = prior_length(priors[name])
        yield name, priors[name], slice(start, start + length)
        start += length


def constrain(priors: Priors, position: Float[Array, " p"]) -> tuple[Params, Float[Array, ""]]:
    """The parameters at an unconstrained position, and the log prior density there with the log-Jacobian (13)."""
    params, log_prior = {}, jnp.zeros(())
    for name, prior, slot in _slots(priors):
        z = position[slot]
        if isinstance(prior, tuple):
            pieces = [_constrain_one(p, z[i]) for i, p in enumerate(prior)]
            params[name] = jnp.stack([value for value, _ in pieces])
            log_prior = log_prior + sum(term for _, term in pieces)
        else:
            params[name], term = _constrain_one(prior, z.reshape(prior.batch_shape))
            log_prior = log_prior + term
    return params, log_prior


def _transform(prior: Distribution) -> Transform:
    """From the unconstrained space to the support; a location is measured from its prior's, in its prior's scale.

    The logarithm makes scales of all units alike. Places have no such thing: steps in metres would not do for
    micrometres.
    """
    base: Any = prior.base_dist if isinstance(prior, ExpandedDistribution) else prior
    if prior.support is constraints.real and hasattr(base, "loc") and hasattr(base, "scale"):
        return AffineTransform(base.loc, base.scale)
    return biject_to(prior.support)


def _constrain_one(prior: Distribution, z):
    transform = _transform(prior)
    value = transform(z)
    return value, jnp.sum(prior.log_prob(value)) + jnp.sum(transform.log_abs_det_jacobian(z, value))


def unconstrain(priors: Priors, params: Params) -> Float[Array, " p"]:
    """The unconstrained position of parameters, the inverse of `constrain`."""
    pieces = []
    for name, prior, _ in _slots(priors):
        values = jnp.asarray(params[name])
        if isinstance(prior, tuple):
            pieces += [jnp.atleast_1d(_transform(p).inv(values[i])) for i, p in enumerate(prior)]
        else:
            pieces.append(jnp.ravel(_transform(prior).inv(values)))
    return jnp.concatenate(pieces)


def log_likelihood(kernel: Any, observed: Observed, size: int | None) -> tuple[Bounds, Bool[Array, ""]]:
    """Σ_t log det L_{A^t} - log Z_t, and whether digits were lost on the way."""
    if isinstance(kernel, Stationary):
        assert isinstance(observed, window.BySize)
        value, lost = jnp.zeros(()), jnp.zeros((), bool)
        for group in observed.groups:
            set_terms, log_fredholm, pivots = window.stationary_terms(kernel, group)
            value = value + jnp.sum(set_terms) + jnp.sum(log_fredholm[group.which])
            lost = lost | ~jnp.all(pivots >= SMALLEST_PIVOT)
    elif isinstance(observed, OnItems):
        k = similarity_matrix(kernel, jnp.asarray(observed.items))  # once: the compiler does not find it out itself
        set_terms, lost_sets = likelihood.log_det_items(kernel, observed.items, observed.members, k)
        log_z, lost_z = normalizer.log_z_items(kernel, observed.items, size, k)
        value, lost = jnp.sum(set_terms) - len(set_terms) * log_z, jnp.any(lost_sets) | lost_z
    elif isinstance(observed, OnRealSpace):
        assert isinstance(kernel, ContinuousGaussian)
        set_terms, lost_sets = likelihood.log_det_real_space(kernel, observed.points, observed.mask)
        log_z = normalizer.log_z_real_space(kernel, observed.points.shape[2], size)
        value, lost = jnp.sum(set_terms) - len(set_terms) * log_z, jnp.any(lost_sets)
    else:
        assert isinstance(kernel, Uniform)
        assert isinstance(observed, window.Windowed)
        set_terms, lost_sets = likelihood.log_det_points(kernel, observed.points, observed.mask)
        log_z, lost_z = normalizer.log_z_windows(kernel, observed, size)
        value = jnp.sum(set_terms) - jnp.sum(log_z[observed.which])
        lost = jnp.any(lost_sets) | jnp.any(lost_z)
    return Bounds(value, value), lost | ~jnp.isfinite(value)


def log_density(problem: Problem, position: Float[Array, " p"]) -> tuple[Bounds, Bool[Array, ""]]:
    """The log posterior density at an unconstrained position, up to a constant, and whether digits were lost (13).

    What is not finite has density 0: a chain rejects it, and the flag says that it happened.
    """
    params, log_prior = constrain(problem.priors, position)
    bounds, lost = log_likelihood(problem.build_kernel(params), problem.observed, problem.size)
    finite = jnp.isfinite(log_prior) & jnp.isfinite(bounds.upper)
    # an impossible prior value is no fault of the likelihood
    lost = lost & jnp.isfinite(log_prior)
    return Bounds(*(jnp.where(finite, log_prior + b, -jnp.inf) for b in bounds)), lost

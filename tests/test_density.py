"""What the compiled density must not contain: batched LAPACK calls, which can deadlock two chains at once.

JAX's batched LAPACK kernels wait for workers of the very pool that runs them. Two programs in two threads then
wait for each other for ever (seen with 31 patterns and two chains on two cores), so every factorisation here is
of one matrix, in a loop over sets.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import dpplearn as dpp
from dpplearn.kernels import ContinuousGaussian, Stationary
from dpplearn.model import constrain, log_density, unconstrain
from dpplearn.model.density import log_likelihood
from dpplearn.spectra import window

LAPACK = {"cholesky", "eigh", "qr", "geqrf", "geqp3", "householder_product", "lu", "svd", "triangular_solve"}


def batched_factorisations(jaxpr) -> list[str]:
    """Names of LAPACK primitives with an operand of more than two dimensions, in all inner programs too."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in LAPACK and any(v.aval.ndim > 2 for v in equation.invars):
            found.append(equation.primitive.name)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += batched_factorisations(inner)
    return found


def tied(params):
    return ContinuousGaussian(alpha=params["alpha"], rho=params["rho"], sigma=params["sigma"])


def patterns() -> dpp.PointPatterns:
    rng = np.random.default_rng(0)
    return dpp.PointPatterns.from_arrays([rng.uniform(size=(6, 2)) for _ in range(3)], window=dpp.Box([0, 0], [1, 1]))


def subsets() -> dpp.Subsets:
    grid = np.stack(np.meshgrid(np.linspace(-0.5, 0.5, 4), np.linspace(-0.5, 0.5, 4)), -1).reshape(-1, 2)
    return dpp.Subsets.from_lists([[0, 5, 10], [3, 6, 9], [1, 7, 12]], grid)


MODELS = {
    "stationary": lambda: dpp.stationary(patterns()),
    "uniform on windows": lambda: dpp.uniform(patterns()),
    "6-DPP on windows": lambda: dpp.uniform(patterns(), size=6),
    "gaussian on R^D": lambda: dpp.gaussian(patterns()),
    "6-DPP on R^D": lambda: dpp.gaussian(patterns(), size=6, isotropic=True),
    "gaussian on items": lambda: dpp.gaussian(subsets()),
    "3-DPP on items": lambda: dpp.uniform(subsets(), size=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_batched_factorisation(name):
    problem = MODELS[name]().problem

    def value(position):
        return log_density(problem, position)[0].upper

    position = jnp.zeros(sum(np.size(jnp.zeros(prior.batch_shape)) for prior in problem.priors.values()))
    assert batched_factorisations(jax.make_jaxpr(value)(position).jaxpr) == []
    assert batched_factorisations(jax.make_jaxpr(jax.grad(value))(position).jaxpr) == []


def test_the_search_finds_a_batched_factorisation():
    jaxpr = jax.make_jaxpr(jax.vmap(jnp.linalg.cholesky))(jnp.stack([jnp.eye(2)] * 3)).jaxpr
    assert batched_factorisations(jaxpr) == ["cholesky"]
    looped = jax.make_jaxpr(lambda x: jax.lax.map(jnp.linalg.cholesky, x))(jnp.stack([jnp.eye(2)] * 3)).jaxpr
    assert batched_factorisations(looped) == []


def test_compiled_and_uncompiled_code_agree_on_which_number_is_which():
    """JAX hands dicts to compiled code in the order of their keys, whatever order they were written in."""
    priors = {
        "width": dist.LogNormal(0.0, 1.0),
        "center": dist.Normal(jnp.array([5.0, -3.0]), 2.0),
        "share": (dist.Beta(1.0, 2.0), dist.Beta(2.0, 1.0)),
        "height": dist.Gamma(2.0, 1.0),
    }
    position = jnp.linspace(-1.0, 1.0, 6)
    plain, compiled = constrain(priors, position), jax.jit(constrain)(priors, position)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), plain, compiled)
    assert plain[0]["center"].tolist() == [5.0 - 2.0, -3.0 - 1.2]  # by name: the first of all
    for back in (unconstrain(priors, plain[0]), jax.jit(unconstrain)(priors, plain[0])):
        np.testing.assert_allclose(back, position, rtol=1e-12)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_leaves_of_a_problem_come_in_one_order(is_reversed, monkeypatch):
    """Whatever order NumPyro lists them in, which changes with the process: the compilation cache needs one order."""
    listed = dist.Distribution.gather_pytree_data_fields.__func__
    monkeypatch.setattr(
        dist.Distribution,
        "gather_pytree_data_fields",
        classmethod(lambda cls: tuple(sorted(listed(cls), reverse=is_reversed))),
    )
    priors = {
        "sigma": dist.LogNormal(1.0, 2.0),
        "rho": (dist.Gamma(3.0, 4.0), dist.HalfNormal(5.0)),
        "alpha": dist.Gamma(8.0, 9.0),
    }
    points = dpp.PointPatterns.from_arrays([np.eye(2)])
    problem = dpp.Model(tied, priors, points).problem
    leaves = [float(leaf) for leaf in jax.tree.leaves(problem) if np.ndim(leaf) == 0]
    assert leaves == [8.0, 9.0, 3.0, 4.0, 0.0, 5.0, 5.0, 1.0, 2.0, 1.0, 2.0]
    same = jax.tree.unflatten(jax.tree.structure(problem), jax.tree.leaves(problem))
    assert [same.priors["sigma"].scale, same.priors["rho"][0].rate, same.priors["alpha"].rate] == [2.0, 4.0, 9.0]


def test_groups_by_size_change_nothing():
    rng = np.random.default_rng(1)
    counts = [3, 5, 40, 0, 6, 2, 4]
    box = dpp.Box([0, 0], [1, 1])
    data = dpp.PointPatterns.from_arrays([rng.uniform(size=(n, 2)) for n in counts], window=box)
    grouped = window.prepare_by_size(data)
    assert [group.points.shape[:2] for group in grouped.groups] == [(6, 8), (1, 40)]
    whole = window.BySize((window.prepare(data),))

    @jax.jit
    def value(observed, sigma):
        return log_likelihood(Stationary(intensity=12.0, sigma=sigma), observed, None)[0].upper

    for sigma in (0.02, 0.08):
        a, b = (value(jax.tree.map(jnp.asarray, observed), jnp.asarray(sigma)) for observed in (grouped, whole))
        assert np.isfinite(a)
        assert abs(a - b) < 1e-9
    alike = [rng.uniform(size=(n, 2)) for n in (20, 22, 24)]
    assert len(window.prepare_by_size(dpp.PointPatterns.from_arrays(alike, window=box)).groups) == 1

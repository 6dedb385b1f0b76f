"""Rank calibration of every sampler on exact data, and wrong samplers that the same statistics must catch.

θ is drawn from the prior, data exactly from θ, and θ is ranked among RANKS thinned draws of a chain that starts
elsewhere and tunes itself: the ranks are uniform if and only if the draws come from the posterior. The rank mean and
the rank variance of each parameter must lie within 4 standard errors: a false alarm of 6e-5 per number, 3e-4 per
sampler. The power of the test against a wrong sampler is the share of 1,000 resamples of its own ranks that fail.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import dpplearn as dpp
from dpplearn import inference, mcmc
from dpplearn.kernels import Gaussian
from dpplearn.model.density import OnItems

REPLICATIONS, QUICK = 200, 60
RANKS, TUNE, LIMIT = 63, 300, 4.0
GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, 4)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
MEDIAN, SD = np.array([0.8, 0.3]), np.array([0.8, 0.8])  # LogNormal priors of gamma and sigma
SETS = 3

# sampler, and how many steps lie between two draws that count
SAMPLERS = {
    "slice": (dpp.slice_sampler(), 8),
    "axes": (dpp.axes_sampler(), 10),
    "random-direction": (dpp.random_direction_sampler(), 15),
    "hyperrectangle": (dpp.hyperrectangle_sampler(), 15),
    "metropolis": (dpp.metropolis_sampler(), 40),
}


# ------------------------------------------------------------------ statistics


def deviations(ranks: np.ndarray, values: int | None = None) -> np.ndarray:
    """Rank mean and rank variance of each column in standard errors.

    Ranks lie in [0, 1]: evenly spaced `values`, or a continuum where that is None.
    """
    if values is None:
        variance, fourth = 1 / 12, 1 / 80
    else:
        levels = np.arange(values) / (values - 1) - 0.5
        variance, fourth = np.mean(levels**2), np.mean(levels**4)
    centred, count = ranks - 0.5, ranks.shape[-2]
    mean = np.mean(centred, axis=-2) / np.sqrt(variance / count)
    spread = (np.mean(centred**2, axis=-2) - variance) / np.sqrt((fourth - variance**2) / count)
    return np.stack([mean, spread], axis=-2)


def power(ranks: np.ndarray, statistic: int, values: int | None = None) -> float:
    """The share of resamples in which the mean (0) or the variance (1) of some rank is beyond the limit."""
    chosen = np.random.default_rng(0).integers(len(ranks), size=(1000, len(ranks)))
    return float(np.mean([np.any(np.abs(deviations(ranks[c], values)[statistic]) > LIMIT) for c in chosen]))


@pytest.mark.parametrize("values", [RANKS + 1, None])
def test_the_statistics_are_standard_for_uniform_ranks(values):
    rng = np.random.default_rng(1)
    shape = (5000, REPLICATIONS, 1)
    ranks = rng.random(shape) if values is None else rng.integers(values, size=shape) / (values - 1)
    scores = deviations(ranks, values)[..., 0]
    assert np.all(np.abs(scores.mean(axis=0)) < 4 / np.sqrt(5000))
    assert np.all(np.abs(scores.std(axis=0) - 1) < 4 / np.sqrt(2 * 5000))


# ------------------------------------------------------------------ replications


@pytest.fixture(scope="module")
def replications():
    """True log parameters, item numbers of their sets, and where the chains start: all from fixed seeds."""
    rng = np.random.default_rng(20)
    truths = np.log(MEDIAN) + SD * rng.normal(size=(REPLICATIONS, 2))
    starts = np.log(MEDIAN) + SD * rng.normal(size=(REPLICATIONS, 2))
    index = np.full((REPLICATIONS, SETS, len(GRID)), -1)
    for r, (gamma, sigma) in enumerate(np.exp(truths)):
        drawn = dpp.simulate(jax.random.key(r), Gaussian(gamma=gamma, sigma=sigma), GRID, SETS)
        for t, members in enumerate(drawn.lists()):
            index[r, t, : len(members)] = members
    return truths, index, starts


@pytest.fixture(scope="module")
def problem():
    with jax.enable_x64(True):
        priors = {n: dist.LogNormal(np.log(m), s) for n, m, s in zip(("gamma", "sigma"), MEDIAN, SD, strict=True)}
    data = dpp.Subsets.from_lists([[0]], GRID)
    return dpp.gaussian(data, isotropic=True, priors=priors).problem


@partial(jax.jit, static_argnums=(0, 1))
def _ranks_and_spread(sampler, thin, problem, truths, index, starts, keys):
    def one(replication):
        truth, index, start, key = replication
        target = inference._target(replace(problem, observed=OnItems(problem.observed.items, index)))

        def step(i, state):
            return mcmc.chain_step(sampler, target, key, state, i, jnp.asarray(TUNE))[0]

        def draw(state, i):
            state = jax.lax.fori_loop(TUNE + i * thin, TUNE + (i + 1) * thin, step, state)
            return state, state.current.position

        state = mcmc.first_state(sampler, mcmc.evaluated_at(target, start))
        _, draws = jax.lax.scan(draw, jax.lax.fori_loop(0, TUNE, step, state), jnp.arange(RANKS))
        return jnp.mean(draws < truth, axis=0), jnp.std(draws, axis=0)

    # a map, not a vmap: every chain's loops take their own number of turns
    return jax.lax.map(one, (truths, index, starts, keys))


def ranks_and_spread(sampler, thin, problem, replications, count=REPLICATIONS):
    """The rank of each true parameter in [0, 1], and the standard deviation of the draws of its logarithm."""
    keys = jax.random.split(jax.random.key(9), REPLICATIONS)[:count]
    arrays = [jnp.asarray(a[:count]) for a in replications]
    return map(np.asarray, _ranks_and_spread(sampler, thin, problem, *arrays, keys))


def test_the_default_sampler_is_calibrated_quick(problem, replications):
    ranks, _ = ranks_and_spread(*SAMPLERS["slice"], problem, replications, QUICK)
    scores = deviations(ranks, RANKS + 1)
    assert np.all(np.abs(scores) < LIMIT), scores


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_is_calibrated(problem, replications, name):
    ranks, _ = ranks_and_spread(*SAMPLERS[name], problem, replications)
    scores = deviations(ranks, RANKS + 1)
    print(name, scores.round(2).tolist())
    assert np.all(np.abs(scores) < LIMIT), scores


# ------------------------------------------------------------------ wrong twins


def _without_jacobian(target, tuning, key, current):
    """Metropolis on log θ with the density of θ: the log-Jacobian, Σ z for z = log θ, is left out."""

    def shifted(known, sign):
        return known._replace(bounds=mcmc.Bounds(*(b + sign * jnp.sum(known.position) for b in known.bounds)))

    forgetful = mcmc.Target(lambda position, rung: shifted(target.evaluate(position, rung), -1))
    state, info = dpp.metropolis_sampler().step(forgetful, tuning, key, shifted(current, -1))
    return shifted(state, 1), info


@pytest.mark.slow
def test_metropolis_without_the_jacobian_is_caught(problem, replications):
    wrong = replace(dpp.metropolis_sampler(), name="without-jacobian", step=_without_jacobian)
    ranks, spread = ranks_and_spread(wrong, SAMPLERS["metropolis"][1], problem, replications)
    assert np.all(np.median(spread, axis=0) > 0.3)
    found = power(ranks, 0, RANKS + 1)
    print(deviations(ranks, RANKS + 1).round(1).tolist(), spread.mean(axis=0).round(2), found)
    assert found >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slice", "hyperrectangle"])
def test_reversed_slice_membership_is_caught(problem, replications, monkeypatch, name):
    compare = mcmc.compare

    def reversed_compare(target, log_u, proposed, current):
        inside, *rest = compare(target, log_u, proposed, current)
        return ~inside, *rest

    # few replications: a reversed slice steps out to its limit, and its ranks are nearly all 0 or 1
    monkeypatch.setattr(mcmc, "compare", reversed_compare)
    sampler, _ = SAMPLERS[name]
    ranks, _ = ranks_and_spread(replace(sampler, name="reversed"), 2, problem, replications, QUICK)
    found = max(power(ranks, statistic, RANKS + 1) for statistic in (0, 1))
    print(name, deviations(ranks, RANKS + 1).round(1).tolist(), found)
    assert found >= 0.95


# ------------------------------------------------------------------ the hyperrectangle that steps out

CORRELATION, WIDTH, UPDATES, CHAINS = 0.9, 0.4, 12, 5000
PRECISION = np.linalg.inv(np.array([[1.0, CORRELATION], [CORRELATION, 1.0]]))


def log_density(z: np.ndarray) -> np.ndarray:
    return -0.5 * np.einsum("...i,ij,...j->...", z, PRECISION, z)


def stepping_out(rng: np.random.Generator, state: np.ndarray) -> np.ndarray:
    """One update of the printed form: each edge steps out while the point on the axis through the state is inside."""
    level = log_density(state) + np.log(rng.random(len(state)))
    low = state - WIDTH * rng.random(state.shape)
    high = low + WIDTH
    for d in range(2):
        for edge, sign in ((low, -1), (high, 1)):
            growing = np.ones(len(state), bool)
            while growing.any():
                point = state.copy()
                point[:, d] = edge[:, d]
                growing &= log_density(point) > level
                edge[growing, d] += sign * WIDTH
    after, is_open = state.copy(), np.ones(len(state), bool)
    while is_open.any():
        point = low + (high - low) * rng.random(state.shape)
        inside = log_density(point) > level
        after[is_open & inside] = point[is_open & inside]
        below = point < state
        low, high = np.where(below, point, low), np.where(below, high, point)
        is_open &= ~inside
    return after


def test_the_hyperrectangle_may_not_step_out():
    """From exact draws of a normal with correlation 0.9; the rank of an end is its probability transform."""
    rng = np.random.default_rng(6)
    starts = rng.multivariate_normal(np.zeros(2), np.linalg.inv(PRECISION), CHAINS)

    def evaluate(position, rung):
        value = -0.5 * position @ jnp.asarray(PRECISION) @ position
        return mcmc.Evaluated(position, mcmc.Bounds(value, value), jnp.asarray(rung), jnp.zeros((), bool))

    def chain(key, start):
        target = mcmc.Target(evaluate)
        widths = jnp.full(2, WIDTH)

        def update(i, current):
            return mcmc.hyperrectangle_step(target, jax.random.fold_in(key, i), current, widths)[0]

        return jax.lax.fori_loop(0, UPDATES, update, mcmc.evaluated_at(target, start)).position

    keys = jax.random.split(jax.random.key(6), CHAINS)
    right = deviations(stats.norm.cdf(np.asarray(jax.jit(jax.vmap(chain))(keys, jnp.asarray(starts)))))
    assert np.all(np.abs(right) < LIMIT), right
    wrong = starts
    for _ in range(UPDATES):
        wrong = stepping_out(rng, wrong)
    found = power(stats.norm.cdf(wrong), 1)
    print(deviations(stats.norm.cdf(wrong)).round(1).tolist(), np.var(wrong, axis=0), found)
    assert found >= 0.95

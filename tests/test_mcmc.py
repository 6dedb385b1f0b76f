"""Steps that decide from bounds: the comparator, the same path as the exact density, invariance, tuning.

Invariance is tested on many independent short chains started from exact draws: the mean and the variance of the
probability integral transform of their ends, |z| < 4, a false alarm of 6e-5 per number and under 1 % for the file.
Each wrong variant beside them must fail the same test.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import dpplearn as dpp
from dpplearn import inference, mcmc
from dpplearn.mcmc import Bounds, Evaluated, Target

SAMPLERS = {
    sampler.name: sampler
    for sampler in (
        dpp.slice_sampler(),
        dpp.axes_sampler(),
        dpp.random_direction_sampler(),
        dpp.hyperrectangle_sampler(),
        dpp.metropolis_sampler(),
    )
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def exact(log_density) -> Target:
    def evaluate(position, rung):
        value = log_density(position)
        return Evaluated(position, Bounds(value, value), jnp.asarray(rung), jnp.zeros((), bool))

    return Target(evaluate)


def ladder(log_density, rungs: int, width: float = 4.0) -> Target:
    """Valid, lopsided bounds that halve from rung to rung; the last rung is exact."""

    def evaluate(position, rung):
        value = log_density(position)
        gap = width / 2**rung if rung < rungs - 1 else 0.0
        below, above = 1 + jnp.sin(7 * position[0]) ** 2, 1 + jnp.cos(5 * position[-1])
        bounds = Bounds(value - gap * below, value + gap * above)
        return Evaluated(position, bounds, jnp.asarray(rung), jnp.zeros((), bool))

    return Target(evaluate, rungs)


CORRELATION = 0.8
COVARIANCE = np.array([[1.0, CORRELATION], [CORRELATION, 1.0]])


def log_normal_2d(z):
    return -0.5 * z @ jnp.asarray(np.linalg.inv(COVARIANCE)) @ z


def log_exponential(z):
    """Truncated and skewed: exp(-x) for x > 0."""
    return jnp.where(z[0] > 0, -z[0], -jnp.inf)


# ------------------------------------------------------------------ the comparator


def known(lower: float, upper: float, rung: int = 0) -> Evaluated:
    bounds = Bounds(jnp.asarray(lower), jnp.asarray(upper))
    return Evaluated(jnp.zeros(1), bounds, jnp.asarray(rung), jnp.zeros((), bool))


# the ratio lies between -1.1 and -0.8, its midpoint at -0.95
@pytest.mark.parametrize(
    ("log_u", "answer", "undecided"),
    [(-1.2, True, 0), (-1.05, True, 1), (-0.96, True, 1), (-0.94, False, 1), (-0.79, False, 0), (0.0, False, 0)],
)
def test_compare_accepts_under_the_lower_and_rejects_over_the_upper_bound(log_u, answer, undecided):
    yes, _, _, counts = mcmc.compare(exact(log_exponential), jnp.asarray(log_u), known(-1.0, -0.8), known(0.0, 0.1))
    assert bool(yes) is answer
    assert (counts.evaluations, counts.undecided, counts.crossed) == (1, undecided, 0)


@pytest.mark.parametrize(("log_u", "answer"), [(-1.0 - 1e-12, True), (-1.0, False), (-1.0 + 1e-12, False)])
def test_compare_is_strict_where_the_density_is_known(log_u, answer):
    yes, _, _, counts = mcmc.compare(exact(log_exponential), jnp.asarray(log_u), known(-1.0, -1.0), known(0.0, 0.0))
    assert bool(yes) is answer
    assert counts.undecided == 0


@pytest.mark.parametrize("proposed", [-np.inf, np.nan])
def test_compare_says_no_to_what_is_not_finite(proposed):
    yes, *_ = mcmc.compare(exact(log_exponential), jnp.asarray(-50.0), known(proposed, proposed), known(0.0, 0.0))
    assert not yes


def test_crossed_bounds_are_counted_and_not_clamped():
    target = exact(log_exponential)
    for proposed, current in ((known(-1.0, -1.1), known(0.0, 0.0)), (known(-1.0, -1.0), known(0.1, 0.0))):
        *_, after, counts = mcmc.compare(target, jnp.asarray(-3.0), proposed, current)
        assert counts.crossed == 1
        assert after.bounds == current.bounds


def halving(position, rung) -> Evaluated:
    """The density is 0 at the state (position 0) and -1 at the proposal; each bound is off by 2^-rung."""
    value = -position[0]
    lost = jnp.asarray(rung == 1) & (position[0] > 0)
    return Evaluated(position, Bounds(value - 0.5**rung, value + 0.5**rung), jnp.asarray(rung), lost)


@pytest.mark.parametrize(
    # the ratio at rung r is -1 ± 2^(1-r): log u is decided once it is further than that from -1
    ("log_u", "answer", "rung", "undecided"),
    [(-3.5, True, 0, 0), (-2.1, True, 1, 0), (-1.3, True, 3, 0), (-0.7, False, 3, 0), (-1.01, True, 5, 1)],
)
def test_compare_tightens_both_sides_until_they_decide(log_u, answer, rung, undecided):
    target = Target(halving, rungs=6)
    proposed, current = mcmc.evaluated_at(target, jnp.ones(1)), mcmc.evaluated_at(target, jnp.zeros(1))
    yes, proposed, current, counts = mcmc.compare(target, jnp.asarray(log_u), proposed, current)
    assert bool(yes) is answer
    assert proposed.rung == current.rung == rung
    assert proposed.bounds.upper - proposed.bounds.lower == 2 * 0.5**rung
    # the proposal itself, and two evaluations per rung climbed; only the proposal's second rung loses digits
    assert counts.evaluations == 1 + 2 * rung
    assert counts.rungs == 2 * sum(range(rung + 1))
    assert counts.lost == (rung >= 1)
    assert counts.undecided == undecided


# ------------------------------------------------------------------ whole chains


@partial(jax.jit, static_argnums=(0, 1, 4))
def run(sampler, make_target, key, position, steps, tune):
    """`steps` steps of a chain with warm-up: states and infos."""
    target = make_target()

    def one(state, step):
        state, info = mcmc.chain_step(sampler, target, key, state, step, tune)
        return state, (state, info)

    first = mcmc.first_state(sampler, mcmc.evaluated_at(target, position))
    return jax.lax.scan(one, first, jnp.arange(steps))[1]


def exact_normal() -> Target:
    return exact(log_normal_2d)


def bounded_normal() -> Target:
    return ladder(log_normal_2d, rungs=4)


START = np.array([0.3, -0.2])


@every_sampler
def test_bounds_and_the_exact_density_take_the_same_path(name):
    """Warm-up included: adaptation sees decisions and positions only."""
    key = jax.random.key(11)
    states, infos = run(SAMPLERS[name], exact_normal, key, jnp.asarray(START), 600, 200)
    bounded_states, bounded_infos = run(SAMPLERS[name], bounded_normal, key, jnp.asarray(START), 600, 200)
    for field in ("moved", "out", "shrunk"):
        np.testing.assert_array_equal(getattr(bounded_infos, field), getattr(infos, field))
    np.testing.assert_allclose(bounded_states.current.position, states.current.position, rtol=0, atol=1e-9)
    np.testing.assert_allclose(bounded_states.tuning.factor, states.tuning.factor, rtol=0, atol=1e-9)
    counts, plain = bounded_infos.counts, infos.counts
    assert counts.rungs.sum() > 100
    assert counts.evaluations.sum() > plain.evaluations.sum()
    assert counts.undecided.sum() == counts.crossed.sum() == plain.rungs.sum() == plain.undecided.sum() == 0


def test_the_path_check_sees_bounds_that_do_not_hold():
    def wrong():
        def evaluate(position, rung):
            value = log_normal_2d(position) + (0.3 * position[0] if rung == 0 else 0.0)
            return Evaluated(position, Bounds(value, value), jnp.asarray(rung), jnp.zeros((), bool))

        return Target(evaluate, rungs=2)

    key, sampler = jax.random.key(11), dpp.metropolis_sampler()
    states, _ = run(sampler, exact_normal, key, jnp.asarray(START), 600, 200)
    wrong_states, _ = run(sampler, wrong, key, jnp.asarray(START), 600, 200)
    assert np.abs(np.asarray(states.current.position - wrong_states.current.position)).max() > 0.1


@every_sampler
def test_tuning_moves_in_warm_up_and_never_after(name):
    states, _ = run(SAMPLERS[name], exact_normal, jax.random.key(3), jnp.asarray(START), 600, 200)
    widths, factors = np.asarray(states.tuning.log_width), np.asarray(states.tuning.factor)
    assert len(np.unique(widths[:200], axis=0)) > 100
    assert np.all(widths[199:] == widths[199])
    assert np.all(factors[199:] == factors[199])
    intervals = np.asarray(states.tuning.intervals)
    assert np.all(intervals[:19] == mcmc.MOST_INTERVALS)
    assert np.all(intervals[19:199] == min(2 * SAMPLERS[name].intervals, mcmc.MOST_INTERVALS))
    assert np.all(intervals[199:] == SAMPLERS[name].intervals)
    if SAMPLERS[name].uses_covariance:
        ends = 1 + np.flatnonzero(np.any(np.diff(factors, axis=0) != 0, axis=(1, 2)))
        assert ends.tolist() == [19, 49, 99, 179]
        np.testing.assert_allclose(factors[-1] @ factors[-1].T, COVARIANCE, atol=0.6)
    else:
        assert np.all(factors == np.eye(2) / 4)


def test_without_warm_up_nothing_is_tuned():
    states, _ = run(dpp.slice_sampler(), exact_normal, jax.random.key(3), jnp.asarray(START), 600, 0)
    assert np.all(np.asarray(states.tuning.log_width) == np.log(4.0))
    assert np.all(np.asarray(states.tuning.intervals) == mcmc.MOST_INTERVALS)
    assert np.all(np.asarray(states.warmup.seen) == 0)


def test_one_seed_gives_one_path():
    again = [run(dpp.slice_sampler(), exact_normal, jax.random.key(s), jnp.asarray(START), 600, 200) for s in (3, 3, 4)]
    first, second, other = (np.asarray(states.current.position) for states, _ in again)
    assert first.tobytes() == second.tobytes()
    assert not np.any(first[-100:] == other[-100:])


# ------------------------------------------------------------------ invariance

CHAINS = 20_000


def z_scores(uniforms: np.ndarray) -> np.ndarray:
    """Mean and variance of what should be uniform, in standard errors; one column per quantity."""
    count = len(uniforms)
    centred = uniforms - 0.5
    mean = centred.mean(axis=0) / np.sqrt(1 / 12 / count)
    variance = (np.mean(centred**2, axis=0) - 1 / 12) / np.sqrt((1 / 80 - 1 / 144) / count)
    return np.concatenate([mean, variance])


def ends(step, log_density, starts: np.ndarray, updates: int, seed: int) -> np.ndarray:
    """Where `updates` steps lead from each start; `step(target, key, current) -> (current, info)`."""
    target = exact(log_density)

    def chain(key, start):
        def update(i, current):
            return step(target, jax.random.fold_in(key, i), current)[0]

        return jax.lax.fori_loop(0, updates, update, mcmc.evaluated_at(target, start)).position

    keys = jax.random.split(jax.random.key(seed), len(starts))
    return np.asarray(jax.jit(jax.vmap(chain))(keys, jnp.asarray(starts)))


def fixed(name: str, p: int, width: float, intervals: int | None = None):
    """The step of a sampler with a tuning of its own, as after warm-up."""
    sampler = SAMPLERS[name]
    factor = np.eye(p) + 0.3 * np.tri(p, k=-1)  # not the target's own shape
    most = jnp.asarray(sampler.intervals if intervals is None else intervals)
    tuning = mcmc.Tuning(jnp.asarray(factor), jnp.full(sampler.updates(p), np.log(width)), most)
    return lambda target, key, current: sampler.step(target, tuning, key, current)


def normal_uniforms(z: np.ndarray) -> np.ndarray:
    """Probability transforms of both coordinates and of both principal axes."""
    axes = np.stack([z[:, 0], z[:, 1], z[:, 0] + z[:, 1], z[:, 0] - z[:, 1]], axis=1)
    return stats.norm.cdf(axes / np.sqrt([1, 1, 2 * (1 + CORRELATION), 2 * (1 - CORRELATION)]))


@every_sampler
def test_a_correlated_normal_is_left_invariant(name):
    starts = np.random.default_rng(1).multivariate_normal(np.zeros(2), COVARIANCE, CHAINS)
    after = ends(fixed(name, 2, 1.3), log_normal_2d, starts, 10, seed=1)
    assert np.mean(np.any(after != starts, axis=1)) > 0.95  # Metropolis may reject ten times
    scores = z_scores(normal_uniforms(after))
    assert np.all(np.abs(scores) < 4), scores


@every_sampler
def test_a_truncated_skewed_density_is_left_invariant(name):
    starts = np.random.default_rng(2).exponential(size=(CHAINS, 1))
    after = ends(fixed(name, 1, 1.5), log_exponential, starts, 10, seed=2)
    assert after.min() > 0
    scores = z_scores(1 - np.exp(-after))
    assert np.all(np.abs(scores) < 4), scores


def test_metropolis_with_an_asymmetric_walk_needs_its_ratio():
    """A log-normal walk on the natural scale: f(x'|x) has 1/x' in it, so log f(x|x') - log f(x'|x) = log x'/x."""

    def walk(with_ratio, key, position):
        proposed = position * jnp.exp(0.8 * jax.random.normal(key, position.shape))
        log_ratio = jnp.sum(jnp.log(proposed / position))
        return proposed, log_ratio if with_ratio else jnp.zeros(())

    starts = np.random.default_rng(3).exponential(size=(CHAINS, 1))
    scores = {}
    for with_ratio in (True, False):
        propose = partial(walk, with_ratio)
        after = ends(lambda t, k, c, p=propose: mcmc.metropolis_step(t, p, k, c), log_exponential, starts, 10, seed=3)
        scores[with_ratio] = np.abs(z_scores(1 - np.exp(-after)))
    assert np.all(scores[True] < 4), scores
    assert np.max(scores[False]) > 20, scores


def test_a_proposal_without_a_finite_ratio_is_rejected():
    def nowhere(key, position):
        return position + 1e-3, jnp.asarray(jnp.nan)

    target = exact(log_normal_2d)
    here = mcmc.evaluated_at(target, jnp.asarray(START))
    after, info = mcmc.metropolis_step(target, nowhere, jax.random.key(0), here)
    assert np.all(np.asarray(after.position) == START)
    assert info.moved == 0


# ------------------------------------------------------------------ the limit on stepping out


def log_standard_normal(z):
    return -0.5 * jnp.sum(z**2)


def slice_with_a_cap_per_side(rng, x: np.ndarray, width: float, cap: int) -> np.ndarray:
    """The tempting, wrong limit: up to `cap` steps to either side, whatever the other side took."""
    level = -0.5 * x**2 + np.log(rng.random(len(x)))
    left = x - width * rng.random(len(x))
    right = left + width
    for _ in range(cap):
        left = np.where(-0.5 * left**2 > level, left - width, left)
        right = np.where(-0.5 * right**2 > level, right + width, right)
    after, is_open = x.copy(), np.ones(len(x), bool)
    while is_open.any():
        point = left + (right - left) * rng.random(len(x))
        inside = -0.5 * point**2 > level
        after = np.where(is_open & inside, point, after)
        left, right = np.where(point < x, point, left), np.where(point < x, right, point)
        is_open &= ~inside
    return after


def test_stepping_out_is_limited_by_a_random_split():
    starts = np.random.default_rng(4).normal(size=(CHAINS, 1))
    after = ends(fixed("slice", 1, 0.6, intervals=3), log_standard_normal, starts, 60, seed=4)
    scores = z_scores(stats.norm.cdf(after))
    assert np.all(np.abs(scores) < 4), scores
    rng, wrong = np.random.default_rng(5), starts[:, 0]
    for _ in range(60):
        wrong = slice_with_a_cap_per_side(rng, wrong, 0.6, 1)
    assert np.max(np.abs(z_scores(stats.norm.cdf(wrong[:, None])))) > 20
    assert 0.65 < np.var(wrong) < 0.85


# ------------------------------------------------------------------ termination


@every_sampler
def test_a_step_ends_where_the_density_is_zero_but_at_the_state(name):
    def alone(z):
        return jnp.where(jnp.all(z == jnp.asarray(START)), 0.0, -jnp.inf)

    target = exact(alone)
    step = jax.jit(lambda key, here: fixed(name, 2, 1.0)(target, key, here))
    after, info = step(jax.random.key(5), mcmc.evaluated_at(target, jnp.asarray(START)))
    np.testing.assert_allclose(after.position, START, rtol=0, atol=1e-12)
    assert after.bounds.lower == 0
    assert info.counts.evaluations <= 2 * (mcmc.MOST_INTERVALS + mcmc.MOST_SHRINKS)


@pytest.mark.parametrize("name", ["slice", "axes", "random-direction"])
def test_a_step_ends_where_the_density_is_flat_for_ever(name):
    target = exact(lambda z: 0.0 * jnp.sum(z))
    step = jax.jit(lambda key, here: fixed(name, 2, 1.0, mcmc.MOST_INTERVALS)(target, key, here))
    after, info = step(jax.random.key(6), mcmc.evaluated_at(target, jnp.asarray(START)))
    assert np.all(np.isfinite(after.position))
    assert np.all(info.moved == 1)
    assert np.all(info.out <= mcmc.MOST_INTERVALS - 1)


# ------------------------------------------------------------------ chunks of a real model


@pytest.fixture(scope="module")
def small_model() -> dpp.Model:
    with jax.enable_x64(True):
        priors = {"gamma": dist.LogNormal(0.0, 0.5), "sigma": dist.LogNormal(-2.0, 0.7)}
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 4)] * 2), axis=-1).reshape(-1, 2)
    return dpp.gaussian(dpp.Subsets.from_lists([[0, 6, 9], [3, 5, 12, 10]], grid), isotropic=True, priors=priors)


def advance(model: dpp.Model, sampler, lengths: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Positions of all steps, and the last state, of a chain taken in chunks of these lengths."""
    key, step, rows = jax.random.key(8), 0, []
    state = mcmc.first_state(sampler, inference.start(model, key))
    for length in lengths:
        scalars = (jnp.asarray(n) for n in (step, length, 60))
        state, buffers = inference._advance(sampler, model.problem, key, state, *scalars)
        rows.append(np.asarray(buffers[0][:length]))
        step += length
    return np.concatenate(rows), [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("name", ["slice", "metropolis"])
def test_the_length_of_chunks_changes_no_bit(small_model, name):
    sampler = SAMPLERS[name]
    rows, state = advance(small_model, sampler, [120])
    for lengths in ([1] * 5 + [50, 65], [59, 2, 59]):
        other_rows, other_state = advance(small_model, sampler, lengths)
        assert rows.tobytes() == other_rows.tobytes()
        assert [leaf.tobytes() for leaf in state] == [leaf.tobytes() for leaf in other_state]
    assert len(np.unique(rows[:, 0])) > 20


def test_lost_digits_of_every_evaluation_are_counted():
    def evaluate(position, rung):
        value = log_normal_2d(position)
        return Evaluated(position, Bounds(value, value), jnp.asarray(rung), jnp.asarray(True))

    for name in ("slice", "hyperrectangle", "metropolis"):
        step = jax.jit(partial(lambda n, key, here: fixed(n, 2, 1.0)(Target(evaluate), key, here), name))
        _, info = step(jax.random.key(7), mcmc.evaluated_at(Target(evaluate), jnp.asarray(START)))
        assert info.counts.lost == info.counts.evaluations > 0

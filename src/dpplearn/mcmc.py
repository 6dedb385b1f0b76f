"""Markov steps that decide from bounds: Metropolis, slices along directions, hyperrectangle slices.

Every accept and every "inside the slice" is one question, `compare`: is log u < log P(Θ') - log P(Θ)? It asks
for bounds, and tightens both until they decide; the exact posterior is a ladder of one rung. Steps have the form
`step(rng_key, state) -> (state, info)` on an unconstrained vector; the density stands at one place in each, since
every further copy is compiled again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dpplearn.normalizer import Bounds

Position = Float[Array, " p"]


class Evaluated(NamedTuple):
    """A position, the bounds known on its log density, the rung they come from, and whether digits were lost."""

    position: Position
    bounds: Bounds
    rung: Int[Array, ""]
    lost: Bool[Array, ""]


class Target(NamedTuple):
    """A log density by bounds: `evaluate(position, rung) -> Evaluated`, rungs 0 … rungs - 1 ever tighter."""

    evaluate: Callable[[Position, Any], Evaluated]
    rungs: int = 1


class Counts(NamedTuple):
    """What a step did: evaluations, the sum of their rungs, comparisons undecided and crossed, lost digits."""

    evaluations: Int[Array, "*n"] | int
    rungs: Int[Array, "*n"] | int
    undecided: Int[Array, "*n"] | int
    crossed: Int[Array, "*n"] | int
    lost: Int[Array, "*n"] | int


class Info(NamedTuple):
    """What a diagnostic needs of one step: `moved` per update, stepping `out` and `shrunk` counts, and Counts."""

    moved: Float[Array, " u"]
    out: Float[Array, " u"]
    shrunk: Float[Array, " u"]
    counts: Counts


NO_COUNTS = Counts(0, 0, 0, 0, 0)
MOST_INTERVALS = 64
MOST_SHRINKS = 200
FEWEST_PER_PARAMETER = 5  # draws that a covariance is estimated from, per parameter


def evaluated_at(target: Target, position: Position) -> Evaluated:
    """What the first rung knows of a position."""
    return target.evaluate(position, 0)


def compare(
    target: Target, log_u: Float[Array, ""], proposed: Evaluated, current: Evaluated
) -> tuple[Bool[Array, ""], Evaluated, Evaluated, Counts]:
    """Is log u < log P(proposed) - log P(current)? Tightens both until their bounds say yes or no.

    Yes when log u lies under the lower bound of the ratio, no when it is not under the upper bound (E1, E2).
    On the last rung the midpoint decides, and a comparison that was still open there counts as undecided.
    The counts hold the evaluation of `proposed` itself and every one that tightened.
    """

    def verdict(proposed, current):
        yes = log_u < proposed.bounds.lower - current.bounds.upper
        no = ~(log_u < proposed.bounds.upper - current.bounds.lower)
        return yes, no

    def is_open(state):
        proposed, current, _ = state
        yes, no = verdict(proposed, current)
        return ~(yes | no) & (jnp.minimum(proposed.rung, current.rung) < target.rungs - 1)

    def tighten(state):
        proposed, current, counts = state
        pair = tuple(_tightened(target, e) for e in (proposed, current))
        return *pair, _count_evaluation(_count_evaluation(counts, pair[0]), pair[1])

    counts = _count_evaluation(jax.tree.map(jnp.asarray, NO_COUNTS), proposed)
    state = proposed, current, counts
    if target.rungs > 1:
        state = jax.lax.while_loop(is_open, tighten, state)
    proposed, current, counts = state
    yes, no = verdict(proposed, current)
    middle = log_u < _midpoint(proposed.bounds) - _midpoint(current.bounds)
    crossed = (proposed.bounds.lower > proposed.bounds.upper) | (current.bounds.lower > current.bounds.upper)
    counts = counts._replace(undecided=(~(yes | no)).astype(int), crossed=crossed.astype(int))
    return jnp.where(yes | no, yes, middle), proposed, current, counts


def _tightened(target, evaluated):
    # rungs are static programs: a switch runs only the one asked for
    rung = jnp.minimum(evaluated.rung + 1, target.rungs - 1)
    branches = [lambda position, r=r: target.evaluate(position, r) for r in range(target.rungs)]
    return jax.lax.switch(rung, branches, evaluated.position)


def _midpoint(bounds: Bounds) -> Float[Array, ""]:
    return jnp.where(jnp.isfinite(bounds.upper), (bounds.lower + bounds.upper) / 2, bounds.upper)


def _count_evaluation(counts: Counts, evaluated: Evaluated) -> Counts:
    return jax.tree.map(jnp.add, counts, Counts(1, evaluated.rung, 0, 0, evaluated.lost.astype(int)))


# ------------------------------------------------------------------ Metropolis

Proposal = Callable[[Key[Array, ""], Position], tuple[Position, Float[Array, ""]]]


def metropolis_step(
    target: Target, propose: Proposal, key: Key[Array, ""], current: Evaluated
) -> tuple[Evaluated, Info]:
    """Algorithms 1 and 3: propose, accept if u < r; on rejection the state stays.

    `propose(key, Θ)` returns Θ' and log f(Θ|Θ') - log f(Θ'|Θ), 0 for a symmetric walk.
    """
    propose_key, u_key = jax.random.split(key)
    position, log_ratio = propose(propose_key, current.position)
    log_u = jnp.log(jax.random.uniform(u_key)) - log_ratio
    proposed = evaluated_at(target, position)
    accept, proposed, current, counts = compare(target, log_u, proposed, current)
    accept = accept & jnp.isfinite(log_ratio)
    state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposed, current)
    zero = jnp.zeros(1)
    return state, Info(accept.astype(float)[None], zero, zero, counts)


def random_walk(factor: Float[Array, "p p"]) -> Proposal:
    """A Gaussian walk Θ' = Θ + factor · ε."""

    def propose(key, position):
        return position + factor @ jax.random.normal(key, position.shape), jnp.zeros(())

    return propose


# ------------------------------------------------------------------ slices


def slice_update(
    target: Target,
    key: Key[Array, ""],
    current: Evaluated,
    direction: Position,
    most: Int[Array, ""] | int = MOST_INTERVALS,
) -> tuple[Evaluated, Info]:
    """Algorithm 2 along a direction: an interval of the direction's length, stepped out while inside, then shrunk.

    One log u serves every end point and candidate. The interval grows to at most `most` lengths, by Neal's random
    split (1: no stepping out). The loop has one density in it, and its phase says what the next point is for.
    """
    u_key, start_key, split_key, shrink_key = jax.random.split(key, 4)
    log_u = jnp.log(jax.random.uniform(u_key))
    left = -jax.random.uniform(start_key)
    to_left = jnp.floor(most * jax.random.uniform(split_key)).astype(int)
    to_right = most - 1 - to_left
    STEP_LEFT, STEP_RIGHT, SHRINK, DONE = range(4)

    def unfinished(state):
        return state["phase"] != DONE

    def look(state):
        phase, left, right = state["phase"], state["left"], state["right"]
        uniform = jax.random.uniform(jax.random.fold_in(shrink_key, state["shrunk"]))
        t = jnp.select([phase == STEP_LEFT, phase == STEP_RIGHT], [left, right], left + uniform * (right - left))
        point = evaluated_at(target, origin + t * direction)
        inside, point, current, counts = compare(target, log_u, point, state["current"])
        outside_now = ~inside
        steps_left = state["steps_left"] - (phase == STEP_LEFT)
        steps_right = state["steps_right"] - (phase == STEP_RIGHT)
        shrink = (phase == SHRINK) & outside_now
        step_left, step_right = (phase == STEP_LEFT) & inside, (phase == STEP_RIGHT) & inside
        left = jnp.where(step_left, left - 1, jnp.where(shrink & (t < 0), t, left))
        right = jnp.where(step_right, right + 1, jnp.where(shrink & (t >= 0), t, right))
        shrunk = state["shrunk"] + shrink
        left_done = outside_now | (steps_left <= 0)
        right_done = outside_now | (steps_right <= 0)
        after_left = jnp.where(steps_right > 0, STEP_RIGHT, SHRINK)
        phase = jnp.select(
            [(phase == STEP_LEFT) & left_done, (phase == STEP_RIGHT) & right_done, (phase == SHRINK) & inside],
            [after_left, SHRINK, DONE],
            phase,
        )
        stuck = shrunk >= MOST_SHRINKS  # an interval at round-off around the state: stay
        accepted = jax.tree.map(lambda a, b: jnp.where(phase == DONE, a, b), point, current)
        return {
            "phase": jnp.where(stuck, DONE, phase),
            "left": left,
            "right": right,
            "steps_left": steps_left,
            "steps_right": steps_right,
            "out": state["out"] + step_left + step_right,
            "shrunk": shrunk,
            "current": accepted,
            "counts": jax.tree.map(jnp.add, state["counts"], counts),
        }

    origin = current.position
    first = jnp.select([to_left > 0, to_right > 0], [STEP_LEFT, STEP_RIGHT], SHRINK)
    zero = jnp.zeros((), int)
    start = {
        "phase": first,
        "left": left,
        "right": left + 1,
        "steps_left": to_left,
        "steps_right": to_right,
        "out": zero,
        "shrunk": zero,
        "current": current,
        "counts": jax.tree.map(jnp.asarray, NO_COUNTS),
    }
    end = jax.lax.while_loop(unfinished, look, start)
    moved = (end["shrunk"] < MOST_SHRINKS).astype(float)
    info = Info(moved[None], end["out"].astype(float)[None], end["shrunk"].astype(float)[None], end["counts"])
    return end["current"], info


def sweep_step(
    target: Target,
    key: Key[Array, ""],
    current: Evaluated,
    directions: Float[Array, "u p"],
    most: Int[Array, ""] | int = MOST_INTERVALS,
) -> tuple[Evaluated, Info]:
    """One slice update along each row of `directions`, in turn."""

    def update(current, key_and_direction):
        current, info = slice_update(target, key_and_direction[0], current, key_and_direction[1], most)
        return current, info

    current, infos = jax.lax.scan(update, current, (jax.random.split(key, len(directions)), directions))
    counts = jax.tree.map(lambda c: jnp.sum(c, axis=0), infos.counts)
    return current, Info(infos.moved[:, 0], infos.out[:, 0], infos.shrunk[:, 0], counts)


def hyperrectangle_step(
    target: Target, key: Key[Array, ""], current: Evaluated, widths: Float[Array, " p"]
) -> tuple[Evaluated, Info]:
    """Neal (2003), Fig. 8: a box of fixed widths placed at random around the state, sampled inside and shrunk.

    There is no stepping out: testing points on the axes through the state is not reversible (E4).
    """
    u_key, start_key, shrink_key = jax.random.split(key, 3)
    log_u = jnp.log(jax.random.uniform(u_key))
    origin = current.position
    low = origin - widths * jax.random.uniform(start_key, origin.shape)

    def unfinished(state):
        return ~state[2] & (state[3] < MOST_SHRINKS)

    def look(state):
        low, high, _, shrunk, current, counts = state
        uniform = jax.random.uniform(jax.random.fold_in(shrink_key, shrunk), origin.shape)
        point = evaluated_at(target, low + uniform * (high - low))
        inside, point, current, more = compare(target, log_u, point, current)
        below = point.position < origin
        low = jnp.where(~inside & below, point.position, low)
        high = jnp.where(~inside & ~below, point.position, high)
        accepted = jax.tree.map(lambda a, b: jnp.where(inside, a, b), point, current)
        counts = jax.tree.map(jnp.add, counts, more)
        return low, high, inside, shrunk + ~inside, accepted, counts

    start = (low, low + widths, jnp.zeros((), bool), jnp.zeros((), int), current, jax.tree.map(jnp.asarray, NO_COUNTS))
    _, _, inside, shrunk, current, counts = jax.lax.while_loop(unfinished, look, start)
    return current, Info(inside.astype(float)[None], jnp.zeros(1), shrunk.astype(float)[None], counts)


# ------------------------------------------------------------------ samplers: a step and how warm-up tunes it


class Tuning(NamedTuple):
    """What warm-up tunes and then leaves fixed: a Cholesky factor of the covariance, log widths or a log scale,
    and how many intervals a slice may step out to."""

    factor: Float[Array, "p p"]
    log_width: Float[Array, " u"]
    intervals: Int[Array, ""]


@dataclass(frozen=True)
class Sampler:
    """A named step and its tuning; hashable, so that it selects a compiled program.

    `step(target, tuning, key, current)`; `updates(p)` widths are tuned, from `first_width(p)`, by `learn(info) -> drift
    of the log widths`, which sees decisions only; `uses_covariance` says whether the factor follows the covariance,
    `intervals` how many intervals a slice may step out to once warm-up is over.
    """

    name: str
    step: Callable[[Target, Tuning, Key[Array, ""], Evaluated], tuple[Evaluated, Info]]
    updates: Callable[[int], int]
    learn: Callable[[Info], Float[Array, " u"]]
    first_width: Callable[[int], float]
    uses_covariance: bool
    intervals: int = MOST_INTERVALS


def _slice_step(target, tuning, key, current):
    directions = jnp.exp(tuning.log_width)[:, None] * tuning.factor.T
    return sweep_step(target, key, current, directions, tuning.intervals)


def _random_direction_step(target, tuning, key, current):
    direction_key, update_key = jax.random.split(key)
    direction = tuning.factor @ jax.random.normal(direction_key, current.position.shape)
    return slice_update(target, update_key, current, jnp.exp(tuning.log_width[0]) * direction, tuning.intervals)


def _hyperrectangle_sampler_step(target, tuning, key, current):
    widths = jnp.exp(tuning.log_width[0]) * jnp.sqrt(jnp.sum(tuning.factor**2, axis=1))
    return hyperrectangle_step(target, key, current, widths)


def _metropolis_sampler_step(target, tuning, key, current):
    return metropolis_step(target, random_walk(jnp.exp(tuning.log_width[0]) * tuning.factor), key, current)


def _balance_slices(info: Info) -> Float[Array, " u"]:
    # wider after stepping out, narrower after shrinking: the interval then fits in about one step each
    return (info.out - info.shrunk) / (1 + info.out + info.shrunk)


def _cover_slices(info: Info) -> Float[Array, " u"]:
    # so wide that one end in five lies inside the slice: after warm-up these intervals do without stepping out
    return (info.out > 0) - 0.2


def _balance_rectangle(info: Info) -> Float[Array, " u"]:
    # about two shrinks an update: a box somewhat larger than the slice
    return jnp.clip(2.0 - info.shrunk, -2.0, 2.0) / 2


def _balance_acceptance(info: Info) -> Float[Array, " u"]:
    return info.moved - 0.3


def _one_each(p: int) -> int:
    return p


def _just_one(_: int) -> int:
    return 1


def _constant_width(width: float) -> Callable[[int], float]:
    return lambda _: width


_SLICE = Sampler("slice", _slice_step, _one_each, _cover_slices, _constant_width(4.0), True, intervals=1)
_AXES = Sampler("axes", _slice_step, _one_each, _balance_slices, _constant_width(1.0), False)
_RANDOM = Sampler("random-direction", _random_direction_step, _just_one, _balance_slices, _constant_width(1.0), True)
_RECTANGLE = Sampler(
    "hyperrectangle", _hyperrectangle_sampler_step, _just_one, _balance_rectangle, _constant_width(3.0), True
)
_METROPOLIS = Sampler(
    "metropolis", _metropolis_sampler_step, _just_one, _balance_acceptance, lambda p: 2.4 / p**0.5, True
)


def slice_sampler() -> Sampler:
    """The default: slices along the columns of the Cholesky factor of the warm-up covariance, in turn.

    Warm-up steps out, after its first window to one side only, and widens the intervals until one end in five lies
    inside the slice. The draws use them as they are, which saves the evaluations that testing the ends costs.
    """
    return _SLICE


def axes_sampler() -> Sampler:
    """The paper's univariate slice, one coordinate after the other."""
    return _AXES


def random_direction_sampler() -> Sampler:
    """One slice along a random direction, Gaussian with the warm-up covariance."""
    return _RANDOM


def hyperrectangle_sampler() -> Sampler:
    """The paper's hyperrectangle slice, in Neal's valid form; its widths follow the warm-up standard deviations."""
    return _RECTANGLE


def metropolis_sampler() -> Sampler:
    """Random-walk Metropolis with the warm-up covariance as its shape."""
    return _METROPOLIS


# ------------------------------------------------------------------ warm-up, inside the compiled step


class Warmup(NamedTuple):
    """Running mean and sum of squares of the positions since the last window, and how many were seen."""

    seen: Float[Array, ""]
    mean: Float[Array, " p"]
    squares: Float[Array, "p p"]


class ChainState(NamedTuple):
    """All a chain needs to go on, and all that a checkpoint saves."""

    current: Evaluated
    tuning: Tuning
    warmup: Warmup


def first_state(sampler: Sampler, current: Evaluated) -> ChainState:
    """A chain before its first step."""
    p = len(current.position)
    # narrow at first: far out, where chains begin, wide steps ask for the dearest likelihoods
    tuning = _first_tuning(sampler, jnp.eye(p) / 4)
    return ChainState(current, tuning, Warmup(jnp.zeros(()), jnp.zeros(p), jnp.zeros((p, p))))


def is_window_end(step: Int[Array, ""], tune: Int[Array, ""]) -> Bool[Array, ""]:
    """Warm-up re-estimates the covariance after 1/10, 1/4, 1/2 and 9/10 of its steps."""
    return jnp.any(jnp.array([(tune * part) // 20 for part in (2, 5, 10, 18)]) == step + 1)


def chain_step(
    sampler: Sampler, target: Target, key: Key[Array, ""], state: ChainState, step: Int[Array, ""], tune: Int[Array, ""]
) -> tuple[ChainState, Info]:
    """One step of a chain; steps before `tune` adapt. The key of a step is fold_in(key, step): chunks do not matter.

    Adaptation sees positions and decisions, never a density, so bounds and the exact density adapt alike.
    """
    current, info = sampler.step(target, state.tuning, jax.random.fold_in(key, step), state.current)
    tuning, warmup = state.tuning, _observe(state.warmup, current.position)
    rate = jnp.maximum(0.05, 2 / (10 + warmup.seen))
    tuning = tuning._replace(log_width=tuning.log_width + rate * sampler.learn(info))
    if sampler.uses_covariance:
        # a covariance of hardly more draws than parameters would freeze the chain
        ended = is_window_end(step, tune) & (warmup.seen >= FEWEST_PER_PARAMETER * len(current.position))
        renewed = _tuned(sampler, warmup)
        fresh = jax.tree.map(jnp.zeros_like, warmup)
        tuning = jax.tree.map(lambda a, b: jnp.where(ended, a, b), renewed, tuning)
        warmup = jax.tree.map(lambda a, b: jnp.where(ended, a, b), fresh, warmup)
    later = jnp.where(step + 1 == tune, sampler.intervals, min(2 * sampler.intervals, MOST_INTERVALS))
    tuning = tuning._replace(intervals=jnp.where(step + 1 >= tune // 10, later, tuning.intervals))
    adapted = jax.tree.map(lambda a, b: jnp.where(step < tune, a, b), (tuning, warmup), (state.tuning, state.warmup))
    return ChainState(current, *adapted), info


def _observe(warmup: Warmup, position: Position) -> Warmup:
    count = warmup.seen + 1
    delta = position - warmup.mean
    mean = warmup.mean + delta / count
    return Warmup(count, mean, warmup.squares + jnp.outer(delta, position - mean))


def _tuned(sampler: Sampler, warmup: Warmup) -> Tuning:
    """The factor of the observed covariance, drawn a little towards its own diagonal, and first widths."""
    covariance = warmup.squares / jnp.maximum(warmup.seen - 1, 1)
    weight = warmup.seen / (warmup.seen + 5)
    diagonal = jnp.diag(jnp.diagonal(covariance) + 1e-10)
    p = len(covariance)
    factor = jnp.linalg.cholesky(weight * covariance + (1 - weight) * diagonal + 1e-12 * jnp.eye(p))
    return _first_tuning(sampler, factor)


def _first_tuning(sampler: Sampler, factor: Float[Array, "p p"]) -> Tuning:
    p = len(factor)
    log_width = jnp.full(sampler.updates(p), jnp.log(sampler.first_width(p)))
    return Tuning(factor, log_width, jnp.asarray(MOST_INTERVALS))

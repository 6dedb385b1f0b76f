"""One Metropolis step and effective draws per second on the paper's grid, beside plain NumPy.

100 items, 100 sets, four parameters; one BLAS thread everywhere. The NumPy references evaluate the same posterior:
`loop` is the plain program, slogdet set by set; `vectorised` one padded batch with everything precomputed. The
NumPy random walk has one scale, tuned to accept about 0.3, and starts at the posterior mean; ours is `fit` with its
default sampler and four chains, on however many cores there are. Run: python benchmarks/bench_grid_step.py
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base.array import array_stats
from common import keep, median_seconds, paper_sets

import dpplearn as dpp
from dpplearn import inference, mcmc
from dpplearn.model.priors import flat_priors

STEPS = 256


def numpy_log_density(data: dpp.Subsets, locations: np.ndarray, scales: np.ndarray, vectorised: bool):
    """log posterior of (log gamma, log sigma) in NumPy, log-normal priors."""
    items, index, mask = data.items, data.index, data.mask
    squared = (items[:, None] - items) ** 2
    pinned = np.eye(index.shape[1]) * ~mask[:, :, None]
    both = mask[:, :, None] & mask[:, None, :]
    lists = data.lists()

    def log_density(z: np.ndarray) -> float:
        gamma, sigma = np.exp(z[:2]), np.exp(z[2:])
        q = np.exp(-0.5 * np.sum(items**2 / gamma, axis=1))
        if vectorised:
            matrix = q[:, None] * np.exp(-0.5 * (squared @ (1 / sigma))) * q
            blocks = np.where(both, matrix[index[:, :, None], index[:, None, :]], pinned)
            sets = np.sum(np.linalg.slogdet(blocks)[1])
        else:
            distance = np.sum((items[:, None] - items[None, :]) ** 2 / sigma, axis=-1)
            matrix = q[:, None] * np.exp(-0.5 * distance) * q[None, :]
            sets = sum(np.linalg.slogdet(matrix[np.ix_(s, s)])[1] for s in lists)
        log_z = np.linalg.slogdet(np.eye(len(items)) + matrix)[1]
        return sets - len(lists) * log_z - 0.5 * np.sum(((z - locations) / scales) ** 2)

    return log_density


def numpy_walk(log_density, start, scale, steps, rng, tune=False):
    """A random walk with one scale; with `tune` it moves towards an acceptance of 0.3. Returns draws and scale."""
    z, here = start, log_density(start)
    draws = np.empty((steps, len(start)))
    for i in range(steps):
        proposal = z + scale * rng.standard_normal(len(z))
        there = log_density(proposal)
        accept = np.log(rng.uniform()) < there - here
        if accept:
            z, here = proposal, there
        if tune:
            scale *= np.exp((accept - 0.3) * 2 / (10 + i) ** 0.6)
        draws[i] = z
    return draws, scale


def effective(draws: np.ndarray) -> float:
    return min(float(array_stats.ess(draws[None, :, j], chain_axis=0, draw_axis=1)) for j in range(draws.shape[1]))


def main() -> None:
    data = paper_sets()
    model = dpp.gaussian(data)
    priors = list(flat_priors(model.priors).values())
    locations, scales = (np.array([float(getattr(p, k)) for p in priors]) for k in ("loc", "scale"))
    with jax.enable_x64(True):
        start = mcmc.first_state(mcmc.metropolis_sampler(), inference.start(model, jax.random.key(1)))
        zero, tune = jnp.asarray(0), jnp.asarray(0)
        arguments = mcmc.metropolis_sampler(), model.problem, jax.random.key(0), start, zero, jnp.asarray(STEPS), tune
        ours = median_seconds(lambda: jax.block_until_ready(inference._advance(*arguments))) / STEPS
        z = np.asarray(start.current.position)
        mine = float(start.current.bounds.upper) - float(inference._evaluate(model.problem, jnp.zeros(4)).bounds.upper)
    result = {"steps": {"dpplearn_ms": 1e3 * ours}}
    for name, vectorised in (("numpy_loop", False), ("numpy_vectorised", True)):
        log_density = numpy_log_density(data, locations, scales, vectorised)
        assert abs(log_density(z) - log_density(np.zeros(4)) - mine) < 1e-6, "not the same posterior"
        seconds = median_seconds(lambda f=log_density: [f(z) for _ in range(20)]) / 20
        result["steps"] |= {f"{name}_ms": 1e3 * seconds, f"{name}_ratio": seconds / ours}
    fit = dpp.fit(model, seed=0)
    positions = np.log(np.concatenate([fit.posterior["gamma"].values, fit.posterior["sigma"].values], axis=2))
    ours_effective = min(p["ess_bulk"] for p in fit.summary["parameters"].values())
    workers = min(4, os.cpu_count() or 1)
    our_rate = ours_effective / (fit.summary["timing"]["draw_s"] * 4 / workers)
    log_density, rng = numpy_log_density(data, locations, scales, False), np.random.default_rng(0)
    center = positions.mean(axis=(0, 1))
    _, scale = numpy_walk(log_density, center, 0.1, 2000, rng, tune=True)
    drawn = []
    seconds = median_seconds(lambda: drawn.append(numpy_walk(log_density, center, scale, 4000, rng)[0]), repeats=3)
    numpy_rate = float(np.median([effective(d) for d in drawn[1:]])) / seconds
    result["effective_draws_per_second"] = {
        "dpplearn_fit_default": our_rate,
        "dpplearn_per_core": our_rate / workers,
        "numpy_random_walk": numpy_rate,
        "ratio": our_rate / numpy_rate,
        "ratio_per_core": our_rate / numpy_rate / workers,
    }
    keep("grid_step", result)


if __name__ == "__main__":
    main()

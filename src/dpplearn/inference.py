"""`fit`: chains in threads, warm-up and draws in short compiled chunks, progress, checkpoints, resume, Ctrl-C."""

import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from threadpoolctl import threadpool_limits

from dpplearn import mcmc
from dpplearn.data import PointPatterns, Subsets
from dpplearn.errors import InputError
from dpplearn.mcmc import ChainState, Counts, Evaluated, Sampler
from dpplearn.model import Model, Problem, log_density, unconstrain
from dpplearn.model.priors import flat_names, shape_of

Progress = Callable[[str, int, int], None]

CHUNK = 256  # the most steps one call of the compiled program takes
CHUNK_SECONDS = 0.25  # about how long a chunk should take, so that Ctrl-C is heard
SAVE_SECONDS = 2.0
START_TRIES = 200


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C; `message` says how to go on."""

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class Fit:
    """A finished fit: the model, the draws and what they say."""

    model: Model
    tree: xarray.DataTree
    summary: dict[str, Any]
    run: dict[str, Any]

    @property
    def posterior(self) -> xarray.Dataset:
        """Draws of the parameters and of what is derived from them: dimensions (chain, draw[, component])."""
        return self.tree["posterior"].to_dataset()

    @cached_property
    def prior_draws(self) -> dict[str, np.ndarray]:
        """Draws from the priors by flat name."""
        from dpplearn.posterior import prior_draws

        return prior_draws(self.model, self.run["options"]["seed"])

    @cached_property
    def moments(self) -> dict[str, Any] | None:
        """Zeroth and second moments, predicted and observed."""
        from dpplearn.model import derived
        from dpplearn.posterior import PREDICTED

        posterior = self.posterior
        flat = {name: posterior[name].values.reshape(-1, *posterior[name].shape[2:]) for name in self.model.priors}
        return derived.moments(self.model, derived.thin(flat, PREDICTED))

    def table(self) -> str:
        """The summary as a table of text: derived quantities first, then the parameters."""
        from dpplearn.words import table_text

        return table_text(self.summary)

    def save(self, directory: str | Path) -> None:
        """posterior.nc, run.json, the pictures, report.html, and last of all summary.json."""
        from dpplearn import plots
        from dpplearn.posterior import write_json, write_tree
        from dpplearn.report import fit_report

        out = Path(directory)
        out.mkdir(parents=True, exist_ok=True)
        (out / "summary.json").unlink(missing_ok=True)  # while it is there, all the rest is
        write_tree(out / "posterior.nc", self.tree)
        names = list(self.summary["parameters"])
        (out / "trace.png").write_bytes(plots.png(plots.trace(self.posterior, names)))
        (out / "autocorrelation.png").write_bytes(plots.png(plots.autocorrelation(self.posterior, names)))
        if self.moments is not None:
            (out / "moments.png").write_bytes(plots.png(plots.moments(self.moments)))
        (out / "report.html").write_text(fit_report(self), encoding="utf-8")
        write_json(out / "run.json", self.run)
        write_json(out / "summary.json", self.summary)


def fit(
    model: Model,
    *,
    seed: int = 0,
    sampler: Sampler | None = None,
    chains: int = 4,
    draws: int = 1000,
    tune: int = 1000,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Fit:
    """Sample the posterior of a model; `draws` and `tune` are per chain, one seed gives one result on one machine.

    With `out` the run is checkpointed there and all files are written at its end; `resume=True` goes on where it
    stopped, to the same draws as if it had not. `progress(phase, done, total)` is called a few times a second.
    """
    sampler = sampler or mcmc.slice_sampler()
    if not isinstance(sampler, Sampler):
        raise InputError(f"sampler: expected one such as dpp.slice_sampler(), found {sampler!r}")
    for name, value, least in (("chains", chains, 1), ("draws", draws, 1), ("tune", tune, 0)):
        if value < least:
            raise InputError(f"--{name}: expected at least {least}, found {value}")
    run = _describe_run(model, seed, sampler, chains, draws, tune)
    directory = None if out is None else Path(out)
    is_begun = directory is not None and _check_directory(directory, run, resume)
    if directory is not None and is_begun:
        finished = _finished(model, run, directory)
        if finished is not None:
            return finished
    try:
        with threadpool_limits(limits=1):
            job = _Job(model, sampler, run, directory)
            if is_begun:
                job.load()
            result = job.run(progress)
            if directory is not None:
                result.save(directory)
    except KeyboardInterrupt:
        raise Interrupted(_how_to_resume(directory)) from None
    return result


# ------------------------------------------------------------------ compiled programs


def _target(problem: Problem) -> mcmc.Target:
    def evaluate(position, rung):
        bounds, lost = log_density(problem, position)
        return Evaluated(position, bounds, jnp.asarray(rung), lost)

    return mcmc.Target(evaluate, rungs=1)


@jax.jit
def _evaluate(problem: Problem, position):
    return mcmc.evaluated_at(_target(problem), position)


@partial(jax.jit, static_argnums=0)
def _advance(sampler: Sampler, problem: Problem, key, state: ChainState, start, length, tune):
    """`length` steps from step `start` on, into a buffer of CHUNK rows."""
    target = _target(problem)
    p = len(state.current.position)
    zeros = jnp.zeros(CHUNK, int)
    counts = Counts(*(zeros for _ in Counts._fields))
    buffers = jnp.zeros((CHUNK, p)), jnp.zeros(CHUNK), jnp.zeros(CHUNK, bool), counts

    def one(i, carry):
        state, (positions, log_densities, is_lost, counts) = carry
        state, info = mcmc.chain_step(sampler, target, key, state, start + i, tune)
        positions = positions.at[i].set(state.current.position)
        log_densities = log_densities.at[i].set(state.current.bounds.upper)
        is_lost = is_lost.at[i].set(state.current.lost)
        counts = jax.tree.map(lambda buffer, n: buffer.at[i].set(n), counts, info.counts)
        return state, (positions, log_densities, is_lost, counts)

    return jax.lax.fori_loop(0, length, one, (state, buffers))


# ------------------------------------------------------------------ chains


class _Chain:
    """One chain: its state, its draws so far, and where they are saved."""

    def __init__(self, path: Path | None):
        self.path = path
        self.step = 0
        self.state: ChainState | None = None
        self.rows: list[tuple[np.ndarray, ...]] = []
        self.seconds: dict[str, float] = {"tune": 0.0, "draw": 0.0}

    def add(self, state: ChainState, buffers: Any, length: int, phase: str, seconds: float) -> None:
        positions, log_densities, is_lost, counts = jax.tree.map(lambda b: np.asarray(b[:length]), buffers)
        self.state, self.step = state, self.step + length
        self.seconds[phase] += seconds
        if phase == "draw":
            self.rows.append((positions, log_densities, is_lost, *counts))

    def columns(self) -> list[np.ndarray]:
        return [np.concatenate(column) for column in zip(*self.rows, strict=True)]

    def save(self) -> None:
        """State and draws in one file, in one move: a kill at any moment leaves the last or the next."""
        if self.path is None or self.state is None:
            return
        leaves = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.state))}
        rows = {f"draws_{i}": column for i, column in enumerate(self.columns())} if self.rows else {}
        partial_path = self.path.with_name(self.path.name + ".partial")
        seconds = np.array([self.seconds["tune"], self.seconds["draw"]])
        content: dict[str, Any] = {"step": self.step, "seconds": seconds} | leaves | rows
        with partial_path.open("wb") as file:
            np.savez(file, **content)
        partial_path.replace(self.path)

    def load(self, example: ChainState) -> None:
        if self.path is None or not self.path.exists():
            return
        with np.load(self.path) as saved:
            leaves, shape = jax.tree.flatten(example)
            self.state = jax.tree.unflatten(shape, [jnp.asarray(saved[f"state_{i}"]) for i in range(len(leaves))])
            self.step = int(saved["step"])
            self.seconds = dict(zip(("tune", "draw"), map(float, saved["seconds"]), strict=True))
            count = sum(name.startswith("draws_") for name in saved.files)
            self.rows = [tuple(saved[f"draws_{i}"] for i in range(count))] if count else []


class _Job:
    """All chains of a fit. The work runs in threads, each in JAX's float64 context; this thread watches."""

    def __init__(self, model: Model, sampler: Sampler, run: dict[str, Any], directory: Path | None):
        self.model, self.sampler, self.description, self.directory = model, sampler, run, directory
        options = run["options"]
        self.seed, self.draws, self.tune = options["seed"], options["draws"], options["tune"]
        folder = None if directory is None else directory / "checkpoint"
        paths = [None if folder is None else folder / f"chain_{i}.npz" for i in range(options["chains"])]
        self.chains = [_Chain(path) for path in paths]
        self.stop = threading.Event()
        self.result: Fit | None = None
        self.failure: BaseException | None = None
        self.compile_seconds = 0.0
        self.phase = "compile"

    @property
    def total(self) -> int:
        return self.tune + self.draws

    @property
    def at_once(self) -> int:
        """How many chains run side by side."""
        return min(len(self.chains), os.cpu_count() or 1)

    def load(self) -> None:
        """Take up what an earlier run saved."""
        with jax.enable_x64(True):
            example = self._nowhere()
            for chain in self.chains:
                chain.load(example)

    def run(self, progress: Progress | None) -> Fit:
        """Start, and wait with an ear for Ctrl-C: what is compiled would not hear it."""
        worker = threading.Thread(target=self._guarded, args=(self._run_all,))
        worker.start()
        try:
            while worker.is_alive():
                worker.join(0.2)
                self._report(progress)
        except BaseException:
            self.stop.set()
            worker.join(0.6)  # what is running ends by itself, and the process with it
            raise
        if self.failure is not None:
            raise self.failure
        self._report(progress)
        assert self.result is not None
        return self.result

    def _report(self, progress: Progress | None) -> None:
        """Each phase up to its end, one after the other."""
        if progress is None:
            return
        n, is_compiled = len(self.chains), self.compile_seconds > 0
        steps = [chain.step for chain in self.chains]
        done = {
            "compile": (int(is_compiled), 1),
            "tune": (sum(min(step, self.tune) for step in steps), n * self.tune),
            "draw": (sum(max(step - self.tune, 0) for step in steps), n * self.draws),
        }
        while True:
            progress(self.phase, *done[self.phase])
            if done[self.phase][0] < done[self.phase][1] or self.phase == "draw":
                return
            self.phase = "tune" if self.phase == "compile" and self.tune else "draw"

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            with jax.enable_x64(True):
                function(*args)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.failure = self.failure or error
            self.stop.set()

    def _first_state(self, evaluated: Evaluated) -> ChainState:
        # by way of NumPy all leaves lose JAX's weak types, which would compile a program of their own
        first = mcmc.first_state(self.sampler, evaluated)
        return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), first)

    def _nowhere(self) -> ChainState:
        """A state of the right shapes."""
        zero, bounds = jnp.asarray(0, int), mcmc.Bounds(jnp.zeros(()), jnp.zeros(()))
        return self._first_state(Evaluated(jnp.zeros(self.model.dimension), bounds, zero, jnp.asarray(False)))

    def _compile(self, key: Any) -> None:
        """No steps: compiles, or finds the program that an earlier fit of data of the same shape compiled."""
        zero = jnp.asarray(0, int)
        jax.block_until_ready(_advance(self.sampler, self.model.problem, key, self._nowhere(), zero, zero, zero))

    def _run_all(self) -> None:
        began = time.perf_counter()
        keys = [jax.random.fold_in(jax.random.key(self.seed), i) for i in range(len(self.chains))]
        # the steps compile on one core while the starting points are looked for on another
        compiler = threading.Thread(target=self._guarded, args=(self._compile, keys[0]))
        compiler.start()
        try:
            for chain, key in zip(self.chains, keys, strict=True):
                if chain.state is None:
                    chain.state = self._first_state(start(self.model, jax.random.fold_in(key, 2**31 - 1)))
        finally:
            compiler.join()
        self._open_directory()  # not before there are starting points: a refused problem leaves nothing behind
        self.compile_seconds = time.perf_counter() - began
        waiting = list(zip(self.chains, keys, strict=True))
        lock = threading.Lock()

        def work():
            while not self.stop.is_set():
                with lock:
                    if not waiting:
                        return
                    chain, key = waiting.pop(0)
                self._run_chain(chain, key)

        workers = [threading.Thread(target=self._guarded, args=(work,)) for _ in range(self.at_once)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if not self.stop.is_set():
            self.result = self._conclude()

    def _open_directory(self) -> None:
        from dpplearn.posterior import write_json

        if self.directory is None:
            return
        (self.directory / "checkpoint").mkdir(parents=True, exist_ok=True)
        write_json(self.directory / "run.json", self.description)
        for chain in self.chains:
            chain.save()

    def _run_chain(self, chain: _Chain, key: Any) -> None:
        length, saved = 1, time.perf_counter()
        while chain.step < self.total and not self.stop.is_set():
            phase = "tune" if chain.step < self.tune else "draw"
            end = self.tune if phase == "tune" else self.total
            steps = min(length, end - chain.step)
            began = time.perf_counter()
            scalars = (jnp.asarray(n, int) for n in (chain.step, steps, self.tune))
            state, buffers = jax.block_until_ready(
                _advance(self.sampler, self.model.problem, key, chain.state, *scalars)
            )
            seconds = time.perf_counter() - began
            chain.add(state, buffers, steps, phase, seconds)
            length = int(np.clip(steps * CHUNK_SECONDS / max(seconds, 1e-4), 1, min(CHUNK, 4 * steps)))
            if time.perf_counter() - saved > SAVE_SECONDS:
                chain.save()
                saved = time.perf_counter()
        chain.save()

    # -------------------------------------------------------------- what the chains found

    def _columns(self) -> list[np.ndarray]:
        per_chain = [[column[: self.draws] for column in chain.columns()] for chain in self.chains]
        return [np.stack(columns) for columns in zip(*per_chain, strict=True)]

    def positions(self) -> np.ndarray:
        return self._columns()[0]

    def statistics(self) -> dict[str, np.ndarray]:
        _, log_densities, is_lost, *counts = self._columns()
        return {"lp": log_densities, "is_lost": is_lost} | dict(zip(Counts._fields, counts, strict=True))

    def _conclude(self) -> Fit:
        from dpplearn import posterior

        tree = posterior.to_tree(self.model, self.positions(), self.statistics())
        summary = posterior.summarize(self.model, tree["posterior"].to_dataset(), self.account())
        result = Fit(self.model, tree, summary, self.description)
        if self.directory is not None:
            _ = result.moments  # compiled here, where Ctrl-C need not wait for it
        return result

    def account(self) -> dict[str, Any]:
        """What summary.json says of the run."""
        totals = {name: int(values.sum()) for name, values in self.statistics().items() if name != "lp"}
        seconds = {
            phase: sum(chain.seconds[phase] for chain in self.chains) / self.at_once for phase in ("tune", "draw")
        }
        return {
            "sampler": self.sampler.name,
            "seed": self.seed,
            "decisions": {
                "undecided": totals["undecided"],
                "crossed": totals["crossed"],
                "mean_rung": totals["rungs"] / max(totals["evaluations"], 1),
                "likelihood_evaluations": totals["evaluations"],
            },
            "lost_digits": totals["lost"],
            "lost_draws": totals["is_lost"],
            "timing": {
                "compile_s": round(self.compile_seconds, 3),
                "tune_s": round(seconds["tune"], 3),
                "draw_s": round(seconds["draw"], 3),
            },
        }


def start(model: Model, key: Any) -> Evaluated:
    """An overdispersed starting point: a draw from the default priors, again until density and gradient are finite.

    The gradient is looked at through differences, so that samplers that need none do not have to compile one.
    """
    priors = model.starts or model.priors
    for attempt in range(START_TRIES):
        position = unconstrain(model.priors, _draw(priors, jax.random.fold_in(key, attempt)))
        if not bool(jnp.all(jnp.isfinite(position))):
            continue
        here = _evaluate(model.problem, position)
        steps = 1e-4 * jnp.eye(len(position))
        around = [_evaluate(model.problem, position + sign * step) for step in steps for sign in (1, -1)]
        if all(bool(jnp.isfinite(e.bounds.lower)) and not bool(e.lost) for e in (here, *around)):
            return here
    raise InputError(
        f"no starting point with a finite density among {START_TRIES} draws from the priors: "
        "the priors and the data do not fit together"
    )


def _draw(priors: Mapping[str, Any], key: Any) -> dict[str, Any]:
    params = {}
    for i, (name, prior) in enumerate(priors.items()):
        parts = prior if isinstance(prior, tuple) else (prior,)
        keys = jax.random.split(jax.random.fold_in(key, i), len(parts))
        values = [p.sample(k) for p, k in zip(parts, keys, strict=True)]
        params[name] = jnp.stack(values) if isinstance(prior, tuple) else values[0]
    return params


# ------------------------------------------------------------------ the directory of a run


def _describe_run(model: Model, seed: int, sampler: Sampler, chains: int, draws: int, tune: int) -> dict[str, Any]:
    """run.json: all that the draws depend on."""
    from dpplearn.words import prior_text

    centers = None if model.centers is None else np.unique(model.centers, axis=0).tolist()
    kernel = {"kernel": getattr(model.build_kernel, "__qualname__", None)} if model.name == "custom" else {}
    return {
        "options": {
            "model": model.name,
            **kernel,
            "parameters": [flat for name, prior in model.priors.items() for flat in flat_names(name, shape_of(prior))],
            "size": model.size,
            "centers": centers,
            "sampler": sampler.name,
            "chains": chains,
            "draws": draws,
            "tune": tune,
            "seed": seed,
        },
        "priors": {name: prior_text(prior, digits=15) for name, prior in model.priors.items()},
        "data": {"hash": data_hash(model)},
        "versions": {name: version(name) for name in ("dpplearn", "jax", "numpy", "numpyro")}
        | {"python": platform.python_version()},
    }


def data_hash(model: Model) -> str:
    """A hash of the data as the likelihood sees them."""
    data, digest = model.data, hashlib.sha256()
    arrays = [data.items, data.index] if isinstance(data, Subsets) else [data.points, data.mask]
    if isinstance(data, PointPatterns):
        arrays += [np.array([[box.lower, box.upper] for box in data.windows])] if data.windows else []
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _check_directory(directory: Path, run: dict[str, Any], resume: bool) -> bool:
    """Whether this run was begun there; refuses what is in the way, and a run of another kind."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: expected a directory, found a file")
    if not resume:
        if directory.exists() and any(directory.iterdir()):
            hint = "resume goes on with the run there"
            raise InputError(f"{directory}: expected a new or empty directory, found files in it; {hint}")
        return False
    saved = directory / "run.json"
    if saved.exists():
        _check_same(json.loads(saved.read_text(encoding="utf-8")), run, directory)
    return saved.exists()


def _check_same(before: dict[str, Any], now: dict[str, Any], directory: Path) -> None:
    """More draws than before are welcome; anything else must be what it was."""
    for part in ("data", "options", "priors", "versions"):
        for key in {**before.get(part, {}), **now[part]}:
            old, new = before.get(part, {}).get(key), now[part].get(key)
            if old == new or (key == "draws" and old is not None and new >= old):
                continue
            if part == "data":
                raise InputError(f"--resume {directory}: expected the data of the run there, found other data")
            kind = {"options": "", "priors": "prior of ", "versions": "version of "}[part]
            at_least = "at least " * (key == "draws")
            expected = f"{kind}{key} {at_least}{old}, as in the run there"
            raise InputError(f"--resume {directory}: expected {expected}, found {new}")


def _finished(model: Model, run: dict[str, Any], directory: Path) -> Fit | None:
    """The fit that was saved there, if it has as many draws."""
    if not (directory / "summary.json").exists():
        return None
    with xarray.open_datatree(directory / "posterior.nc", engine="h5netcdf") as saved:
        if saved["posterior"].sizes["draw"] < run["options"]["draws"]:
            return None
        tree = saved.load()
    return Fit(model, tree, json.loads((directory / "summary.json").read_text(encoding="utf-8")), run)


def _how_to_resume(directory: Path | None) -> str:
    if directory is None:
        return "stopped; nothing was saved (give out= to make runs resumable)"
    return f"stopped; go on with the same command and --resume: what is done is kept in {directory}"

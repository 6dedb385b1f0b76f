"""The command line. Every option is checked before a file is written; a user's mistake is one line and exit code 2."""

import dataclasses
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dpplearn import __version__, datasets
from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box, RealSpace
from dpplearn.errors import InputError
from dpplearn.readers import (
    Window,
    read_file,
    read_items,
    read_windows,
    write_points,
    write_subsets,
    write_windows,
)
from dpplearn.words import base_name

INPUT_IS_WRONG, NOT_CONVERGED, STOPPED = 2, 3, 130

# What each option takes, and what is planned but not there yet.
CHOICES = {
    "--model": ("gaussian", "stationary", "uniform"),
    "--covariance": ("isotropic", "diagonal"),
    "--amplitude": ("fixed", "learn"),
    "--center": ("origin", "centroid", "window", "learn"),
    "--sampler": ("slice", "axes", "random-direction", "hyperrectangle", "metropolis"),
    "--normalizer": ("auto", "exact"),
    "--prior-set": ("default", "paper"),
}
PLANNED = {
    "--model": ("loglinear", "polynomial", "features", "lowrank"),
    "--covariance": ("full",),
    "--sampler": ("hmc", "nuts"),
    "--normalizer": ("spectral", "spectral-paper", "landmarks", "nystrom", "fourier"),
}
# Every parameter but mu, a place, is positive, so these are the univariate continuous distributions that can serve.
PRIORS = (
    *("Beta", "BetaProportion", "Chi2", "Exponential", "Gamma", "HalfCauchy", "HalfNormal", "InverseGamma"),
    *("Kumaraswamy", "LogNormal", "LogUniform", "Pareto", "Uniform", "Weibull"),
)
PRIORS_OF_PLACES = ("Cauchy", "Laplace", "Logistic", "Normal", "StudentT", "Uniform")
LARGEST_SEED = 2**32 - 1
MANY_POINTS = 150  # a model of more takes some seconds to prepare
PHASES = {"compile": "compiling", "tune": "warm-up", "draw": "drawing"}

# In every version of typer, with click inside or beside it, BadParameter stands under its UsageError.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Learn the parameters of determinantal point process kernels, with exact posteriors.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

Items = Annotated[Path | None, typer.Option(help="The items that subsets are taken from: CSV, .npy or Parquet.")]
Windows = Annotated[Path | None, typer.Option(help="CSV with columns pattern,xmin,xmax,ymin,ymax[,unit].")]
Size = Annotated[int | None, typer.Option(min=1, help="Every set has this many points or items: a K-DPP.")]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST_SEED)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, that of the process where none is given; the exit code says how it ended."""
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if code == STOPPED and arguments is None:
        # Python would wait for the compiled program that still runs in a thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(arguments: list[str]) -> int:
    try:
        code = typer.main.get_command(app).main(arguments or ["--help"], prog_name="dpplearn", standalone_mode=False)
    except _UsageError as error:
        return _refuse(getattr(error, "format_message", error.__str__)())
    except InputError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}")
    except typer.Abort:
        return STOPPED
    return code if isinstance(code, int) else 0


def _print_version(is_asked: bool) -> bool:
    if is_asked:
        print(__version__)
        raise typer.Exit
    return is_asked


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command()
def fit(
    data: Annotated[str, typer.Argument(help="A shipped data set, a CSV of points, or subsets (JSON or CSV).")],
    out: Annotated[Path, typer.Option(help="Folder for the results; new or empty, except with --resume.")],
    items: Items = None,
    windows: Windows = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(CHOICES['--model'])}.")] = None,
    size: Size = None,
    isotropic: Annotated[bool, typer.Option("--isotropic", help="Short for --covariance isotropic.")] = False,
    covariance: Annotated[str | None, typer.Option(help="isotropic or diagonal.", show_default="diagonal")] = None,
    amplitude: Annotated[str | None, typer.Option(help="On items: fixed or learn.", show_default="fixed")] = None,
    center: Annotated[str | None, typer.Option(help="Gaussian on points: origin, centroid, window or learn.")] = None,
    sampler: Annotated[str, typer.Option(help=f"{', '.join(CHOICES['--sampler'])}.")] = "slice",
    normalizer: Annotated[str, typer.Option(help="auto or exact.")] = "auto",
    prior: Annotated[list[str] | None, typer.Option(help="NAME=Dist(a,b), as often as needed.")] = None,
    prior_set: Annotated[str, typer.Option(help="default or paper.")] = "default",
    chains: Annotated[int, typer.Option(min=1)] = 4,
    draws: Annotated[int, typer.Option(min=1, help="Per chain.")] = 1000,
    tune: Annotated[int, typer.Option(min=0, help="Warm-up steps per chain.")] = 1000,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run in --out.")] = False,
) -> None:
    """Learn a model's parameters: an exact posterior, a table and a report."""
    chosen = {"--model": model, "--covariance": covariance, "--amplitude": amplitude, "--center": center}
    _check_choices(chosen | {"--sampler": sampler, "--normalizer": normalizer, "--prior-set": prior_set})
    _check_folder(out, resume)
    observed = _read(data, items, windows)
    has_windows = isinstance(observed, PointPatterns) and observed.windows is not None
    model = model or ("stationary" if has_windows else "gaussian")
    _check_combination(model, observed, size, isotropic, covariance, amplitude, center)
    options: dict[str, Any] = {"prior_set": prior_set}
    if model != "stationary":
        shape = "isotropic" if isotropic else covariance or "diagonal"
        options |= {"size": size, "covariance": shape, "amplitude": amplitude or "fixed"}
    if center:
        options["center"] = center
    _use_compilation_cache()
    options["priors"] = _parse_priors(prior or [])
    settings = {"seed": seed, "chains": chains, "draws": draws, "tune": tune, "resume": resume}
    raise typer.Exit(_fit_and_report(model, observed, options, sampler, settings, out))


@app.command()
def simulate(
    model: Annotated[str, typer.Option(help=f"{', '.join(CHOICES['--model'])}.")],
    params: Annotated[str, typer.Option(help="As in alpha=100,rho=0.7,sigma[0]=0.05,sigma[1]=0.1.")],
    sets: Annotated[int, typer.Option(min=1, help="How many sets to draw.")],
    out: Annotated[Path, typer.Option(help="A new file: points CSV, or subsets JSON with --items.")],
    size: Size = None,
    dim: Annotated[int | None, typer.Option(min=1, max=3, help="Of the space, where no file says it. [2]")] = None,
    items: Items = None,
    windows: Annotated[Path | None, typer.Option(help="One row is the window of every set.")] = None,
    seed: Seed = 0,
) -> None:
    """Draw sets from a model, exactly, into a file that `fit` reads."""
    _check_choices({"--model": model})
    _check_new_file(out)
    values = _parse_params(params)
    if items and windows:
        raise InputError("--items and --windows: expected one of them, found both")
    if dim and (items or windows):
        raise InputError(f"--dim {dim}: the dimension is that of --{'items' if items else 'windows'}; leave out --dim")
    base = read_items(items, _note) if items else None
    window = _only_window(windows) if windows else None
    if window:
        _check_new_file(_windows_file(out))
    domain = base or (window.box if window else RealSpace(dim or 2))
    build, arguments = _kernel_of(model, values, domain, size)
    _use_compilation_cache()
    import jax
    import jax.numpy as jnp

    import dpplearn as dpp

    with jax.enable_x64(True):
        kernel = build(**{name: jnp.asarray(value) for name, value in arguments.items()})
        drawn = dpp.simulate(jax.random.key(seed), kernel, domain, sets, size=size)
    if isinstance(drawn, Subsets):
        write_subsets(out, drawn)
    else:
        write_points(out, drawn)
        if window:
            shared = dataclasses.replace(drawn, windows=(window.box,) * sets, unit=window.unit or None)
            write_windows(_windows_file(out), shared)
            _note(f"fit with --windows {_windows_file(out)}")
    print(out)


@app.command("datasets")
def list_datasets() -> None:
    """What ships, with provenance."""
    described = datasets.describe()
    rows = [("name", "patterns", "points", "window", "unit")]
    rows += [(d.name, str(d.patterns), str(d.points), d.window, d.unit) for d in described]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for d in described:
        terms = f"{d.terms[0].upper()}{d.terms[1:]}"
        print(f"\n{d.name}: {d.what}.\n  {d.publication}.\n  {d.scale}.\n  {terms}.")


def _fit_and_report(
    model: str,
    data: PointPatterns | Subsets,
    options: dict[str, Any],
    sampler: str,
    settings: dict[str, Any],
    out: Path,
) -> int:
    import dpplearn as dpp
    from dpplearn.words import prior_text

    if data.counts.max() > MANY_POINTS:
        _say("preparing the likelihood")
    built = {"gaussian": dpp.gaussian, "stationary": dpp.stationary, "uniform": dpp.uniform}[model](data, **options)
    samplers = {
        "slice": dpp.slice_sampler,
        "axes": dpp.axes_sampler,
        "random-direction": dpp.random_direction_sampler,
        "hyperrectangle": dpp.hyperrectangle_sampler,
        "metropolis": dpp.metropolis_sampler,
    }
    width = max(map(len, built.priors))
    priors = [f"  {name:<{width}}  {prior_text(distribution)}" for name, distribution in built.priors.items()]
    try:
        with _progress(["priors, frozen for this run:", *priors]) as progress:
            result = dpp.fit(built, sampler=samplers[sampler](), out=out, progress=progress, **settings)
    except KeyboardInterrupt as stop:
        _say(getattr(stop, "message", "stopped"))
        return STOPPED
    print(result.table())
    for warning in result.summary["warnings"]:
        _say(f"warning: {warning}")
    is_good = result.summary["converged"] and not result.summary["decisions"]["undecided"]
    if not is_good:
        _say("warning: the results are written, but do not trust them yet")
    print(out / "report.html")
    return 0 if is_good else NOT_CONVERGED


def _only_window(path: Path) -> Window:
    windows = read_windows(path)
    if len(windows) > 1:
        raise InputError(f"{path}: row {windows[1].row}: expected one window for every set, found a second")
    return windows[0]


def _read(data: str, items: Path | None, windows: Path | None) -> PointPatterns | Subsets:
    if data in datasets.names():
        for option, value in (("--items", items), ("--windows", windows)):
            if value is not None:
                raise InputError(f"{option} {value}: the shipped data set {data} comes complete; leave out {option}")
        return datasets.load(data)
    if not Path(data).exists():
        shipped = ", ".join(datasets.names())
        raise InputError(f"{data}: expected a file or a shipped data set ({shipped}), found neither")
    return read_file(data, items, windows, _note)


def _check_choices(chosen: dict[str, str | None]) -> None:
    for option, value in chosen.items():
        allowed = ", ".join(CHOICES[option])
        if value in PLANNED.get(option, ()):
            raise InputError(f"{option} {value} is not available yet; choose one of {allowed}")
        if value is not None and value not in CHOICES[option]:
            raise InputError(f"{option}: expected one of {allowed}, found {value!r}")


def _check_folder(out: Path, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a folder, found a file")
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise InputError(f"--out {out}: expected a new or empty folder, found files in it; --resume goes on with a run")
    _check_writable(out)


def _check_new_file(out: Path) -> None:
    if out.exists():
        raise InputError(f"--out {out}: expected a new file, found one that exists")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: expected a file in a folder that exists, found no folder {out.parent}")
    _check_writable(out)


def _check_writable(out: Path) -> None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"--out {out}: expected a place to write to, found that {there} is not")


def _check_combination(
    model: str,
    data: PointPatterns | Subsets,
    size: int | None,
    isotropic: bool,
    covariance: str | None,
    amplitude: str | None,
    center: str | None,
) -> None:
    on_items = isinstance(data, Subsets)
    has_windows = isinstance(data, PointPatterns) and data.windows is not None
    is_stationary = model == "stationary"
    wrong = (
        (is_stationary and on_items, "--model stationary: expected points with windows, found subsets of items"),
        (is_stationary and not has_windows, "--model stationary: expected points with windows; add --windows FILE"),
        (is_stationary and size, "--size with --model stationary: its number of points is random; leave out --size"),
        (
            is_stationary and covariance == "diagonal",
            "--covariance diagonal with --model stationary: it is isotropic; leave out --covariance",
        ),
        (
            model == "uniform" and not (on_items or has_windows),
            "--model uniform: expected points with windows, or subsets; add --windows FILE",
        ),
        (
            size and amplitude == "learn",
            "--size with --amplitude learn: alpha cancels where the size is fixed; leave out one of them",
        ),
        (
            isotropic and covariance == "diagonal",
            "--isotropic with --covariance diagonal: expected one of them, found both",
        ),
        (
            amplitude and not on_items,
            "--amplitude: expected subsets of items; on points alpha or the intensity is always learned",
        ),
        (center and on_items, "--center: expected points; on items the center of the quality is the origin"),
        (center and model != "gaussian", f"--center with --model {model}: it has no center; leave out --center"),
        (center == "window" and not has_windows, "--center window: expected points with windows; add --windows FILE"),
    )
    for is_wrong, message in wrong:
        if is_wrong:
            raise InputError(message)


def _parse_priors(texts: Sequence[str]) -> dict[str, Any]:
    """Distributions by parameter name, `NAME` or `NAME[i]`."""
    if not texts:
        return {}
    import jax
    import numpyro.distributions as dist

    priors: dict[str, Any] = {}
    for text in texts:
        match = re.fullmatch(r"\s*([A-Za-z_]\w*(?:\[\d+\])?)\s*=\s*(\w+)\s*\(([^()]*)\)\s*", text)
        if match is None:
            raise InputError(f"--prior: expected NAME=Dist(a,b) as in sigma=LogNormal(0,1), found {text!r}")
        name, kind, numbers = match.groups()
        is_place = base_name(name) == "mu"
        kinds = PRIORS_OF_PLACES if is_place else PRIORS
        if kind not in kinds:
            raise InputError(f"--prior {text}: expected one of {', '.join(kinds)}, found {kind!r}")
        if name in priors:
            raise InputError(f"--prior {text}: expected one prior for {name}, found a second")
        try:
            values = [float(number) for number in numbers.split(",")] if numbers.strip() else []
        except ValueError:
            raise InputError(f"--prior {text}: expected numbers in the brackets, found {numbers!r}") from None
        try:
            with jax.enable_x64(True):
                distribution = getattr(dist, kind)(*values, validate_args=True)
        except (TypeError, ValueError):
            takes = ", ".join(getattr(dist, kind).arg_constraints)
            raise InputError(f"--prior {text}: expected valid {kind}({takes}), found ({numbers})") from None
        support = distribution.support
        lower, upper = (
            getattr(support, key, default) for key, default in (("lower_bound", -math.inf), ("upper_bound", math.inf))
        )
        lowest, highest = -math.inf if is_place else 0, 1 if name == "repulsion" else math.inf
        if not (np.isfinite(values).all() and lower < upper):
            raise InputError(f"--prior {text}: expected finite numbers in increasing order, found ({numbers})")
        if not lowest <= lower < upper <= highest:
            where = "between 0 and 1" if name == "repulsion" else "on positive numbers"
            raise InputError(f"--prior {text}: expected a prior {where}, found one from {lower:g} to {upper:g}")
        priors[name] = distribution
    return priors


def _parse_params(text: str) -> dict[str, dict[int | None, float]]:
    """Values by parameter name and component; the component is None where one value serves all."""
    values: dict[str, dict[int | None, float]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)(?:\[(\d+)\])?\s*=\s*(\S+)\s*", part)
        if match is None:
            raise InputError(f"--params: expected NAME=NUMBER or NAME[i]=NUMBER between commas, found {part!r}")
        name, component, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        is_place = name == "mu"
        if not (-math.inf if is_place else 0) < value < math.inf:
            kind = "finite" if is_place else "positive"
            raise InputError(f"--params: expected a {kind} number for {name}, found {number!r}")
        of_name = values.setdefault(name, {})
        index = None if component is None else int(component)
        if index in of_name or None in of_name or (of_name and index is None):
            raise InputError(f"--params: expected {name} once, or {name}[0], {name}[1], … once each, found {text!r}")
        of_name[index] = value
    return values


def _kernel_of(
    model: str, values: dict[str, dict[int | None, float]], domain: BaseSet | Box | RealSpace, size: int | None
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The kernel's class and its arguments; which names it takes depends on the model and where it lives."""
    on_items, dim = isinstance(domain, BaseSet), domain.dim
    if model == "stationary" and not isinstance(domain, Box):
        raise InputError("--model stationary: expected --windows FILE, found none")
    if model == "uniform" and isinstance(domain, RealSpace):
        raise InputError("--model uniform: expected --windows FILE or --items FILE, found neither")
    if model == "gaussian" and isinstance(domain, Box):
        raise InputError("--model gaussian lives on all of space: leave out --windows, or choose stationary or uniform")
    if model == "stationary" and size:
        raise InputError("--size with --model stationary: its number of points is random; leave out --size")
    if size and isinstance(domain, BaseSet) and size > len(domain):
        raise InputError(f"--size {size}: expected at most {len(domain)}, the number of items")
    _check_names(model, values, on_items, size)
    if size and "alpha" in values:
        _note("alpha cancels where the size is fixed: it is not used")
        values = {name: value for name, value in values.items() if name != "alpha"}
    arguments = {name: _components(name, value, dim) for name, value in values.items()}
    if model == "stationary":
        arguments = _stationary_arguments(arguments, dim)
    elif not on_items:
        arguments.setdefault("alpha", 1.0)
    if "mu" in arguments:
        arguments["center"] = arguments.pop("mu")

    from dpplearn import kernels

    if on_items:
        return kernels.Gaussian, arguments
    continuous = {"gaussian": kernels.ContinuousGaussian, "uniform": kernels.Uniform, "stationary": kernels.Stationary}
    return continuous[model], arguments


def _check_names(model: str, found: Collection[str], on_items: bool, size: int | None) -> None:
    """The parameters that a model takes where it lives, and no others."""
    required = {
        "gaussian": ("sigma", "gamma") if on_items else ("alpha", "rho", "sigma"),
        "uniform": ("sigma",) if on_items else ("alpha", "sigma"),
        "stationary": ("intensity", "repulsion" if "repulsion" in found else "sigma"),
    }[model]
    if size:
        required = tuple(name for name in required if name != "alpha")
    optional = {"alpha"} if model != "stationary" and (on_items or size) else set()
    optional |= {"mu"} if model == "gaussian" and not on_items else set()
    if not set(required) <= set(found) <= {*required, *optional}:
        hint = " (or repulsion in place of sigma)" if model == "stationary" else ""
        raise InputError(f"--params: expected {', '.join(required)}{hint}, found {', '.join(found)}")


def _components(name: str, values: dict[int | None, float], dim: int) -> Any:
    """One number, or an array of one per dimension."""
    if None in values:
        return values[None]
    if name in {"alpha", "intensity", "repulsion"} or set(values) != set(range(dim)):
        found = ", ".join(f"{name}[{index}]" for index in values)
        one_each = "" if name in {"alpha", "intensity", "repulsion"} else f" or {name}[0] to {name}[{dim - 1}]"
        raise InputError(f"--params: expected {name}{one_each} in dimension {dim}, found {found}")
    return np.array([values[index] for index in range(dim)])


def _stationary_arguments(values: dict[str, Any], dim: int) -> dict[str, float]:
    """Intensity and sigma, with repulsion = intensity (2πσ²)^(D/2) in (0, 1]."""
    intensity, sigma = values["intensity"], values.get("sigma")
    if isinstance(sigma, np.ndarray):
        raise InputError("--params: the stationary model is isotropic, expected one sigma, found one per dimension")
    repulsion = values["repulsion"] if sigma is None else intensity * (2 * math.pi * sigma**2) ** (dim / 2)
    if repulsion > 1:
        raise InputError(f"--params: expected repulsion = intensity (2 pi sigma^2)^(D/2) <= 1, found {repulsion:.6g}")
    if sigma is None:
        sigma = math.sqrt((repulsion / intensity) ** (2 / dim) / (2 * math.pi))
    return {"intensity": intensity, "sigma": sigma}


def _windows_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}_windows.csv")


def _use_compilation_cache() -> None:
    """What was compiled once is kept in the user's cache folder; where that cannot be written, nothing is kept."""
    import jax

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpplearn" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextmanager
def _progress(opening: list[str]) -> Iterator[Callable[[str, int, int], None]]:
    """A bar with rate and time left on a terminal; elsewhere a line when a phase begins and for each tenth of it.

    The opening lines come with the first progress: a refused run says nothing but why.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    starts: dict[str, tuple[float, int]] = {}
    tenths: dict[str, int] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            while opening:
                _say(opening.pop(0))
            start, first = starts.setdefault(phase, (time.monotonic(), done))
            elapsed = time.monotonic() - start
            pace = ""
            if done > first and elapsed > 0:
                rate = (done - first) / elapsed
                pace = f"{rate:,.0f} steps/s, {(total - done) / rate:,.0f} s left"
            if phase not in tasks:
                tasks[phase] = bars.add_task(PHASES[phase], total=total, pace=pace)
            bars.update(tasks[phase], completed=done, total=total, pace=pace)
            tenth = 10 * done // total
            if not console.is_terminal and tenth > tenths.get(phase, -1):
                if phase != "compile" or not done:
                    _say(PHASES[phase] if phase == "compile" else f"{PHASES[phase]} {done}/{total} {pace}".rstrip())
                tenths[phase] = tenth

        yield show


def _refuse(message: str) -> int:
    _say(f"error: {' '.join(message.splitlines())}")
    return INPUT_IS_WRONG


def _note(message: str) -> None:
    _say(f"note: {message}")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

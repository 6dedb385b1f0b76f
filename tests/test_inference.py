"""Runs: one seed one result, killed and resumed runs, refusals, Ctrl-C, and what a finished run leaves on disk."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray

import dpplearn as dpp
from dpplearn import inference
from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box
from dpplearn.errors import InputError
from dpplearn.model.derived import moments

SHORT = {"chains": 2, "draws": 30, "tune": 40}
STATS = {"mean", "sd", "q05", "q50", "q95"}


def patterns(seed: int = 0, sets: int = 1, points: int = 8) -> PointPatterns:
    rng = np.random.default_rng(seed)
    return PointPatterns.from_arrays([rng.normal(0, 0.5, (points, 2)) for _ in range(sets)])


def windowed(*counts: int) -> PointPatterns:
    rng = np.random.default_rng(0)
    return PointPatterns.from_arrays([rng.uniform(size=(n, 1)) for n in counts], window=Box([0], [1]))


def subsets(size: int = 3) -> Subsets:
    items = np.linspace(-1, 1, 12)[:, None]
    return Subsets.from_lists([[0, 5, 11][:size], [2, 6, 9][:size], [1, 4, 8][:size]], BaseSet(items))


def model(seed: int = 0) -> dpp.Model:
    return dpp.gaussian(patterns(seed), isotropic=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> SimpleNamespace:
    """One small run and its folder; tests only read it."""
    out = tmp_path_factory.mktemp("run") / "out"
    seen = []
    fit = dpp.fit(model(), seed=3, out=out, progress=lambda *args: seen.append(args), **SHORT)
    return SimpleNamespace(fit=fit, out=out, progress=seen)


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing them takes longer than such short runs."""
    monkeypatch.setattr("dpplearn.plots.png", lambda _: b"")


def draws(fit: inference.Fit) -> dict[str, np.ndarray]:
    return {str(name): values.to_numpy() for name, values in fit.posterior.data_vars.items()}


def saved_draws(out: Path) -> dict[str, np.ndarray]:
    with xarray.open_dataset(out / "posterior.nc", group="posterior", engine="h5netcdf") as posterior:
        return {str(name): values.to_numpy() for name, values in posterior.data_vars.items()}


def assert_same_bytes(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert values.tobytes() == second[name].tobytes(), name


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


# ------------------------------------------------------------------ one seed, one result


def test_one_seed_gives_one_result_and_another_gives_another(finished):
    again = dpp.fit(model(), seed=3, **SHORT)
    assert_same_bytes(draws(finished.fit), draws(again))
    other = dpp.fit(model(), seed=4, **SHORT)
    assert not np.any(draws(other)["sigma"] == draws(again)["sigma"])


def test_chains_differ_and_move(finished):
    first, second = finished.fit.posterior["sigma"].to_numpy()
    assert not np.any(first == second)
    assert len(np.unique(first)) > 0.9 * len(first)


def test_the_length_of_chunks_changes_nothing(finished, monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_SECONDS", 1e-9)  # one step at a time
    assert_same_bytes(draws(finished.fit), draws(dpp.fit(model(), seed=3, **SHORT)))


@pytest.mark.parametrize("tune", [0, 40])
def test_progress_goes_through_the_phases_to_their_ends(finished, tune):
    seen = finished.progress
    if not tune:
        seen = []
        dpp.fit(model(), progress=lambda *args: seen.append(args), **SHORT | {"tune": 0, "draws": 4})
    phases = list(dict.fromkeys(phase for phase, _, _ in seen))
    assert phases == (["compile", "tune", "draw"] if tune else ["compile", "draw"])
    for phase in phases:
        done = [d for p, d, _ in seen if p == phase]
        (total,) = {t for p, _, t in seen if p == phase}
        assert done == sorted(done)
        assert done[-1] == total
    order = [phases.index(phase) for phase, _, _ in seen]
    assert order == sorted(order)


# ------------------------------------------------------------------ resuming


@pytest.mark.usefixtures("no_pictures")
def test_more_draws_extend_a_run_and_keep_its_first_draws(finished, tmp_path):
    out = tmp_path / "out"
    dpp.fit(model(), seed=3, out=out, **SHORT | {"draws": 12})
    assert json.loads((out / "run.json").read_text())["options"]["draws"] == 12
    longer = dpp.fit(model(), seed=3, out=out, resume=True, **SHORT)
    assert json.loads((out / "run.json").read_text())["options"]["draws"] == SHORT["draws"]
    assert_same_bytes(draws(longer), draws(finished.fit))
    assert_same_bytes(saved_draws(out), draws(finished.fit))


def test_resuming_a_finished_run_changes_nothing(finished):
    before, summary = state_of(finished.out), finished.fit.summary
    heard = []
    again = dpp.fit(model(), seed=3, out=finished.out, resume=True, progress=lambda *a: heard.append(a), **SHORT)
    assert state_of(finished.out) == before
    assert heard == []
    assert again.summary == json.loads(json.dumps(summary))
    assert_same_bytes(draws(again), draws(finished.fit))
    assert again.table() == finished.fit.table()


@pytest.mark.usefixtures("no_pictures")
def test_what_was_being_written_when_a_run_was_killed_is_written_again(finished, tmp_path):
    out = tmp_path / "out"
    dpp.fit(model(), seed=3, out=out, **SHORT)
    for name in ("summary.json", "posterior.nc", "report.html"):
        (out / name).unlink()
    (out / "checkpoint" / "chain_0.npz.partial").write_bytes(b"half")
    dpp.fit(model(), seed=3, out=out, resume=True, **SHORT)
    assert_same_bytes(saved_draws(out), draws(finished.fit))
    assert (out / "report.html").exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_missing_chain_is_drawn_again(finished, tmp_path):
    out = tmp_path / "out"
    dpp.fit(model(), seed=3, out=out, **SHORT)
    (out / "summary.json").unlink()
    (out / "checkpoint" / "chain_1.npz").unlink()
    dpp.fit(model(), seed=3, out=out, resume=True, **SHORT)
    assert_same_bytes(saved_draws(out), draws(finished.fit))


@pytest.mark.usefixtures("no_pictures")
def test_resume_where_no_run_was_begun_starts_one(finished, tmp_path):
    out = tmp_path / "out"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint" / "chain_0.npz").write_bytes(b"of nobody")
    dpp.fit(model(), seed=3, out=out, resume=True, **SHORT)
    assert_same_bytes(saved_draws(out), draws(finished.fit))


REFUSED = {
    "data": (lambda: model(seed=1), {}, "expected the data of the run there, found other data"),
    "seed": (model, {"seed": 4}, "expected seed 3, as in the run there, found 4"),
    "sampler": (model, {"sampler": dpp.axes_sampler()}, "expected sampler slice, as in the run there, found axes"),
    "chains": (model, {"chains": 3}, "expected chains 2, as in the run there, found 3"),
    "tune": (model, {"tune": 41}, "expected tune 40, as in the run there, found 41"),
    "fewer draws": (model, {"draws": 29}, "expected draws at least 30, as in the run there, found 29"),
    "prior": (
        lambda: dpp.gaussian(patterns(), isotropic=True, priors={"sigma": dist.LogNormal(0.0, 1.0)}),
        {},
        "expected prior of sigma LogNormal(",
    ),
    "last digit of a prior": (
        lambda: dpp.gaussian(
            patterns(), isotropic=True, priors={"rho": dist.LogNormal(model().priors["rho"].loc + 1e-9, 0.5)}
        ),
        {},
        "expected prior of rho LogNormal(",
    ),
    "prior set": (lambda: dpp.gaussian(patterns(), isotropic=True, prior_set="paper"), {}, "expected prior of alpha"),
    "covariance": (
        lambda: dpp.gaussian(patterns()),
        {},
        "expected parameters ['alpha', 'rho', 'sigma'], as in the run there, found ['alpha', 'rho[0]', 'rho[1]', ",
    ),
    "size": (lambda: dpp.gaussian(patterns(), isotropic=True, size=8), {}, "expected parameters ["),
    "center": (lambda: dpp.gaussian(patterns(), isotropic=True, center="origin"), {}, "expected centers [["),
}


@pytest.mark.parametrize(("build", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_resume_refuses_another_run(finished, build, options, message):
    before = state_of(finished.out)
    with pytest.raises(InputError) as refusal:
        dpp.fit(build(), out=finished.out, resume=True, **{"seed": 3, **SHORT, **options})
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"--resume {finished.out}: ")
    assert "\n" not in str(refusal.value)
    assert state_of(finished.out) == before


def test_another_version_is_refused(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "version", lambda _: "0.0.1")
    with pytest.raises(InputError, match=r"expected version of dpplearn .*, as in the run there, found 0\.0\.1"):
        dpp.fit(model(), seed=3, out=finished.out, resume=True, **SHORT)


def test_what_is_in_the_way_is_left_alone(finished, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match="expected a directory, found a file"):
        dpp.fit(model(), out=file, **SHORT)
    with pytest.raises(InputError, match="expected a new or empty directory, found files in it"):
        dpp.fit(model(), seed=3, out=finished.out, **SHORT)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(("name", "value"), [("chains", 0), ("draws", 0), ("tune", -1)])
def test_counts_are_checked(tmp_path, name, value):
    with pytest.raises(InputError, match=f"--{name}: expected at least {value + 1}, found {value}"):
        dpp.fit(model(), out=tmp_path / "out", **SHORT | {name: value})
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ starting points


def test_starting_points_are_drawn_again_until_the_density_is_finite(monkeypatch):
    """The first draw has no density, the second one has none beside it: the third is taken."""
    asked = []
    evaluate = inference._evaluate

    def partly(problem, position):
        found = evaluate(problem, position)
        asked.append(np.asarray(position))
        is_bad = len(asked) in (1, 10)  # each draw is looked at with its 2 p = 6 neighbours
        return found._replace(bounds=jax.tree.map(lambda b: jnp.where(is_bad, -jnp.inf, b), found.bounds))

    monkeypatch.setattr(inference, "_evaluate", partly)
    here = inference.start(model(), jax.random.key(0))
    assert len(asked) == 21
    np.testing.assert_array_equal(here.position, asked[14])
    assert bool(jnp.isfinite(here.bounds.lower))
    assert np.abs(asked[14] - asked[7]).min() > 1e-3
    assert np.abs(asked[7] - asked[0]).min() > 1e-3


def test_no_starting_point_is_one_clear_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "START_TRIES", 3)

    def nowhere(_, position):
        zero, nothing = jnp.zeros((), int), jnp.full((), -jnp.inf)
        return inference.Evaluated(position, inference.mcmc.Bounds(nothing, nothing), zero, jnp.array(False))

    monkeypatch.setattr(inference, "_evaluate", nowhere)
    with pytest.raises(InputError, match="no starting point with a finite density among 3 draws") as refusal:
        dpp.fit(model(), out=tmp_path / "out", **SHORT)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_starting_points_are_overdispersed_also_under_the_paper_prior():
    """The paper's prior has no scale (a draw overflows): chains start from the default one."""
    problem = dpp.gaussian(patterns(), isotropic=True, prior_set="paper")
    starts = [inference.start(problem, jax.random.key(i)).position for i in range(6)]
    assert np.isfinite(starts).all()
    assert np.std(starts, axis=0).min() > 0.2


# ------------------------------------------------------------------ models of the user's own


def own_kernel(params):
    """A plain function L(x, y) on items, with one length for both of its factors (tied)."""
    width = params["width"]

    def kernel(x, y):
        quality = jnp.exp(-(jnp.sum(x**2) + jnp.sum(y**2)) / width)
        return quality * jnp.exp(-jnp.sum((x - y) ** 2) / width)

    return kernel


def tied_gaussian(params):
    """The paper's kernel with sigma a fixed share of rho."""
    return dpp.kernels.ContinuousGaussian(alpha=params["alpha"], rho=params["rho"], sigma=0.2 * params["rho"])


@pytest.mark.usefixtures("no_pictures")
def test_a_kernel_of_ones_own_on_items(tmp_path):
    own = dpp.Model(own_kernel, {"width": dist.LogNormal(0.0, 1.0)}, subsets())
    fit = dpp.fit(own, out=tmp_path / "out", **SHORT)
    assert list(fit.summary["parameters"]) == ["width"]
    assert fit.summary["model"] == "custom"
    assert fit.summary["derived"]["expected_size"]["mean"] > 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["options"]["kernel"] == "own_kernel"
    # the posterior mean against quadrature over the one parameter
    z = np.linspace(-6, 6, 1201)
    log_p = np.array([_own_log_density(np.exp(value)) - value**2 / 2 for value in z])
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean, sd = weight @ z, np.sqrt(weight @ (z - weight @ z) ** 2)
    drawn = np.log(dpp.fit(own, chains=2, draws=600, tune=200).posterior["width"].to_numpy()).ravel()
    assert abs(drawn.mean() - mean) < 5 * sd / np.sqrt(len(drawn) / 4)


def _own_log_density(width: float) -> float:
    data = subsets()
    x = np.asarray(data.items)[:, 0]
    matrix = np.exp(-(x[:, None] ** 2 + x**2) / width - (x[:, None] - x) ** 2 / width)
    sets = [row[row >= 0] for row in data.index]
    terms = [np.linalg.slogdet(matrix[np.ix_(s, s)])[1] for s in sets]
    return sum(terms) - len(sets) * np.linalg.slogdet(np.eye(len(x)) + matrix)[1]


def test_tied_parameters_on_points():
    priors = {"alpha": dist.LogNormal(3.0, 1.0), "rho": dist.LogNormal(-0.3, 0.5)}
    fit = dpp.fit(dpp.Model(tied_gaussian, priors, patterns()), **SHORT)
    assert set(fit.summary["parameters"]) == {"alpha", "rho"}
    assert fit.summary["derived"]["repulsion"]["mean"] is None
    assert np.isfinite(fit.posterior["rho"]).all()


# ------------------------------------------------------------------ what a run leaves on disk


def test_a_learned_center_moves_with_the_origin_and_the_unit_of_the_data():
    here = patterns(points=12)
    there = PointPatterns.from_arrays([1000 * x + np.array([5e5, -2e6]) for x in here.arrays()])
    found, moved = (draws(dpp.fit(dpp.gaussian(p, isotropic=True, center="learn"), **SHORT)) for p in (here, there))
    assert found["mu"].shape == (2, 30, 2)
    assert np.ptp(found["mu"]) > 0.1
    np.testing.assert_allclose(moved["mu"], 1000 * found["mu"] + np.array([5e5, -2e6]), rtol=1e-7)
    for name, unit in (("alpha", 1), ("rho", 1000), ("sigma", 1000)):
        np.testing.assert_allclose(moved[name], unit * found[name], rtol=1e-5)


def test_second_moments_with_a_learned_center_are_about_the_centroid():
    """E Σ (x-c)² = E Σ (x-μ)² + E|A| (μ-c)²."""
    data = patterns(points=12)
    given = {"alpha": np.full(2, 30.0), "rho": np.full(2, 1.0), "sigma": np.full(2, 0.3)}
    centroid, away = np.mean(data.arrays()[0], axis=0), np.array([0.5, -2.0])
    fixed = moments(dpp.gaussian(data, isotropic=True, center="centroid"), given)
    learned = dpp.gaussian(data, isotropic=True, center="learn")
    shifted = moments(learned, given | {"mu": np.stack([centroid, centroid + away])})
    assert fixed is not None
    assert shifted is not None
    for d, name in enumerate(("E Σx²", "E Σy²")):
        assert shifted[name]["observed"] == pytest.approx(fixed[name]["observed"])
        more = fixed["E|A|"]["predicted"][0] * away[d] ** 2
        assert shifted[name]["predicted"] == pytest.approx(fixed[name]["predicted"] + np.array([0, more]))


def strict(path: Path) -> dict:
    def refuse(constant):
        raise AssertionError(f"{path.name} holds {constant}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def assert_contract(summary: dict) -> None:
    assert list(summary) == [
        *("model", "sampler", "normalizer", "normalizer_reason", "is_exact", "seed", "units", "data", "parameters"),
        *("derived", "decisions", "lost_digits", "timing", "converged", "warnings"),
    ]
    for stats in summary["parameters"].values():
        assert set(stats) == STATS | {"r_hat", "ess_bulk", "ess_tail"}
    assert {"repulsion", "regularity", "expected_size"} <= {name.partition("[")[0] for name in summary["derived"]}
    for stats in summary["derived"].values():
        assert set(stats) == STATS
    assert set(summary["decisions"]) == {"undecided", "crossed", "mean_rung", "likelihood_evaluations"}
    assert set(summary["timing"]) == {"compile_s", "tune_s", "draw_s"}
    assert set(summary["units"]) == set(summary["parameters"]) | {
        name for name, stats in summary["derived"].items() if stats["q50"] is not None
    }


def test_files_of_a_run(finished):
    names = {path.name for path in finished.out.iterdir()}
    files = {
        "posterior.nc",
        "summary.json",
        "run.json",
        "report.html",
        "trace.png",
        "autocorrelation.png",
        "moments.png",
    }
    assert names == files | {"checkpoint"}
    assert_contract(strict(finished.out / "summary.json"))
    run = strict(finished.out / "run.json")
    assert set(run) == {"options", "priors", "data", "versions"}
    assert run["options"]["parameters"] == ["alpha", "rho", "sigma"]
    assert len(run["data"]["hash"]) == 64
    assert run["priors"]["sigma"].startswith("LogNormal(")


def test_posterior_nc_opens_with_arviz_and_xarray(finished):
    tree = xarray.open_datatree(finished.out / "posterior.nc", engine="h5netcdf")
    assert {"posterior", "sample_stats", "observed_data"} <= set(tree.children)
    assert tree["posterior"]["sigma"].dims == ("chain", "draw")
    assert {"alpha", "rho", "sigma", "repulsion", "regularity", "expected_size"} == set(tree["posterior"].data_vars)
    assert {"lp", "evaluations", "is_lost"} <= set(tree["sample_stats"].data_vars)
    assert (
        int(tree["sample_stats"]["evaluations"].sum()) == (finished.fit.summary["decisions"]["likelihood_evaluations"])
    )
    np.testing.assert_array_equal(tree["observed_data"]["points"], finished.fit.model.data.points)


@pytest.mark.usefixtures("no_pictures")
def test_components_have_a_dimension_in_posterior_nc_and_flat_names_in_summary_json(tmp_path):
    fit = dpp.fit(dpp.gaussian(patterns()), out=tmp_path / "out", **SHORT | {"draws": 5})
    assert saved_draws(tmp_path / "out")["sigma"].shape == (2, 5, 2)
    summary = strict(tmp_path / "out" / "summary.json")
    assert_contract(summary)
    assert {"sigma[0]", "sigma[1]", "rho[0]", "rho[1]", "alpha"} == set(summary["parameters"])
    assert {"repulsion[0]", "repulsion[1]"} <= set(summary["derived"])
    assert fit.summary["converged"] is False


def test_numbers_that_do_not_exist_are_null(tmp_path):
    """One chain of two draws has no R-hat; the paper's prior has no moments; both stay strict JSON."""
    out = tmp_path / "out"
    problem = dpp.gaussian(patterns(), isotropic=True, prior_set="paper")
    dpp.fit(problem, out=out, chains=1, draws=2, tune=10)
    summary = strict(out / "summary.json")
    assert_contract(summary)
    assert all(stats["r_hat"] is None and stats["ess_bulk"] is None for stats in summary["parameters"].values())
    assert summary["converged"] is False
    assert strict(out / "run.json")["priors"]["rho"] == "InverseGamma(0.001, 0.001)"
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", (out / "report.html").read_text())
    assert "nan" not in re.findall(r"[a-z]+", page.lower())


@pytest.mark.usefixtures("no_pictures")
def test_a_k_dpp_has_no_sizes(tmp_path):
    out = tmp_path / "out"
    dpp.fit(dpp.gaussian(subsets(), size=3, isotropic=True), out=out, **SHORT | {"draws": 5})
    summary = strict(out / "summary.json")
    assert_contract(summary)
    assert set(summary["parameters"]) == {"gamma", "sigma"}
    assert all(value is None for name in ("regularity", "expected_size") for value in summary["derived"][name].values())
    assert not (out / "moments.png").exists()


# ------------------------------------------------------------------ warnings


def test_counts_that_differ_too_much_are_said_first():
    fit = dpp.fit(dpp.stationary(windowed(2, 28, 3, 5)), chains=2, draws=5, tune=10)
    assert fit.summary["converged"] is False
    assert "differ in their counts (2 to 28) more than one shared intensity allows" in fit.summary["warnings"][0]
    assert fit.summary["warnings"][1].startswith("not converged")


@pytest.mark.slow
def test_counts_that_one_intensity_allows_are_no_reason_to_warn():
    fit = dpp.fit(dpp.stationary(windowed(6, 7, 6, 7)), **SHORT)
    assert not any("counts" in warning for warning in fit.summary["warnings"])


def test_a_fixed_amplitude_that_cannot_reach_the_sizes_is_said():
    items = np.linspace(-1, 1, 30)[:, None]
    singles = Subsets.from_lists([[i] for i in range(0, 30, 2)], BaseSet(items))
    few = {"chains": 2, "draws": 20, "tune": 40}
    fixed = dpp.fit(dpp.uniform(singles, priors={"sigma": dist.LogNormal(-6.0, 0.1)}), **few)
    assert any("try --amplitude learn" in warning for warning in fixed.summary["warnings"])


@pytest.mark.slow
def test_a_learned_amplitude_reaches_the_sizes():
    items = np.linspace(-1, 1, 30)[:, None]
    singles = Subsets.from_lists([[i] for i in range(0, 30, 2)], BaseSet(items))
    learned = dpp.fit(dpp.uniform(singles, amplitude="learn"), chains=2, draws=20, tune=40)
    assert not any("amplitude" in warning for warning in learned.summary["warnings"])


# ------------------------------------------------------------------ killed and interrupted, in processes of their own


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """One compilation cache for all processes of this file."""
    cache = tmp_path_factory.mktemp("cache")
    source = str(Path(dpp.__file__).parents[1])
    return os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": source, "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def killable(tmp_path_factory, environment) -> SimpleNamespace:
    """A run long enough to be hit in any phase, its arguments, and what it gives when nobody stops it."""
    folder = tmp_path_factory.mktemp("killed")
    x = np.random.default_rng(5).normal(0, 0.5, (30, 2))
    rows = [f"a,{a},{b}" for a, b in x]
    (folder / "p.csv").write_text("\n".join(["pattern,x,y", *rows]) + "\n")
    arguments = ["fit", str(folder / "p.csv"), "--isotropic", "--chains", "2", "--tune", "600", "--draws", "900"]
    arguments += ["--seed", "7"]
    finish(start(arguments, folder / "whole", environment))
    return SimpleNamespace(arguments=arguments, whole=folder / "whole", environment=environment)


def start(arguments: list[str], out: Path, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "dpplearn.cli", *arguments, "--out", str(out), *more]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def steps_saved(out: Path) -> list[int]:
    steps = []
    for path in sorted((out / "checkpoint").glob("chain_*.npz")):
        with np.load(path) as saved:
            steps.append(int(saved["step"]))
    return steps


def wait_for(process: subprocess.Popen[str], phase: str, share: float) -> None:
    """Read the progress until this share of a phase is done."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.match(rf"{phase} (\d+)/(\d+)", line)
        if found and int(found[1]) >= share * int(found[2]):
            return
    raise AssertionError(f"{phase} was never printed")


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=300)
    assert process.returncode in {0, 3}, err


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C: the last line. Heard within a second (and a half, on a busy machine), exit code 130, no traceback."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    seconds = time.monotonic() - began
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert seconds < 1.5
    return err.splitlines()[-1]


def test_kill_in_warm_up_around_its_end_and_in_the_draws_then_ctrl_c_then_resume(killable, tmp_path):
    """Three kill -9s of one run and a Ctrl-C; the draws are the same bytes as those of a run never stopped."""
    out = tmp_path / "out"
    for phase, share, more in (("warm-up", 0.1, []), ("warm-up", 1, ["--resume"]), ("drawing", 0.3, ["--resume"])):
        with start(killable.arguments, out, killable.environment, *more) as process:
            wait_for(process, phase, share)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not (out / "summary.json").exists()
        assert len(steps_saved(out)) == 2
    process = start(killable.arguments, out, killable.environment, "--resume")
    wait_for(process, "drawing", 0.6)
    assert interrupt(process) == f"stopped; go on with the same command and --resume: what is done is kept in {out}"
    finish(start(killable.arguments, out, killable.environment, "--resume"))
    assert_same_bytes(saved_draws(out), saved_draws(killable.whole))


def test_ctrl_c_while_compiling_is_heard_within_a_second(killable, tmp_path):
    cold = killable.environment | {"XDG_CACHE_HOME": str(tmp_path / "cold")}
    process = start(killable.arguments, tmp_path / "out", cold)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("compiling"):
        pass
    time.sleep(0.5)
    assert interrupt(process).startswith("stopped; ")


def test_ctrl_c_in_python_says_how_to_resume(tmp_path):
    """In a thread of pytest's own: the interrupt is raised in the main thread, as Ctrl-C does."""
    seen = threading.Event()

    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "draw":
            seen.set()
            raise KeyboardInterrupt

    with pytest.raises(inference.Interrupted, match="stopped; go on with the same command and --resume") as stopped:
        dpp.fit(model(), seed=3, out=tmp_path / "out", progress=interrupt, **SHORT | {"draws": 2000})
    assert seen.is_set()
    assert isinstance(stopped.value, KeyboardInterrupt)
    assert str(tmp_path / "out") in stopped.value.message
    with pytest.raises(inference.Interrupted, match="nothing was saved"):
        dpp.fit(model(), seed=3, progress=interrupt, **SHORT | {"draws": 2000})


def test_a_sampler_by_its_name_is_one_clear_line():
    code = (
        "import numpy as np, dpplearn as dpp\n"
        "model = dpp.gaussian(dpp.PointPatterns.from_arrays([np.eye(2)]), isotropic=True)\n"
        "try:\n    dpp.fit(model, sampler='slice')\nexcept dpp.InputError as error:\n    print(error)"
    )  # in a process of its own: here the types of arguments are checked before
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "sampler: expected one such as dpp.slice_sampler(), found 'slice'\n"

"""The command line: one line and exit code 2 for every mistake, nothing written, the contract's exit codes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import dpplearn
from dpplearn import cli, datasets, kernels, readers
from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box, RealSpace

FIT = ["fit", "p.csv", "--windows", "w.csv", "--out", "out"]
ON_ITEMS = ["fit", "s.json", "--items", "i.csv", "--out", "out"]
SIMULATE = ["simulate", "--model", "gaussian", "--params", "alpha=9,rho=1,sigma=.1", "--sets", "2", "--out", "new.csv"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with points, windows, subsets and items; the compilation cache stays the tests' own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_use_compilation_cache", lambda: None)
    Path("p.csv").write_text("pattern,x,y\na,0.5,0.5\na,1,0\nb,0.25,0.5\n")
    Path("w.csv").write_text("xmin,xmax,ymin,ymax\n0,1,0,1\n")
    Path("w2.csv").write_text("pattern,xmin,xmax,ymin,ymax\na,0,1,0,1\nb,0,1,0,1\n")
    Path("p1.csv").write_text("pattern,x,y\na,0.5,0.5\na,1,0\n")
    Path("empty.csv").write_text("pattern,x,y\na,,\nb,,\n")
    Path("s.json").write_text("[[0, 1], [], [2]]")
    Path("s.csv").write_text("set,item\na,0\na,1\n")
    Path("i.csv").write_text("id,f\na,0\nb,1\nc,2\n")
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def replaced(arguments: list[str], **options: str) -> list[str]:
    """The arguments with some options' values replaced."""
    arguments = list(arguments)
    for name, value in options.items():
        arguments[arguments.index(f"--{name}") + 1] = value
    return arguments


MISTAKES = {
    # typer's own
    "no command": (["nonsense"], "No such command 'nonsense'."),
    "no data": (["fit", "--out", "out"], "Missing argument 'data'."),
    "no out": (["fit", "cells"], "Missing option '--out'."),
    "no value": (["fit", "cells", "--out"], "Option '--out' requires an argument."),
    "unknown option": ([*FIT, "--cluster", "a"], "No such option: --cluster"),
    "second data": ([*FIT, "more"], "Got unexpected extra argument"),
    "chains": ([*FIT, "--chains", "0"], "Invalid value for '--chains'"),
    "chains text": ([*FIT, "--chains", "two"], "Invalid value for '--chains'"),
    "draws": ([*FIT, "--draws", "0"], "Invalid value for '--draws'"),
    "tune": ([*FIT, "--tune", "-1"], "Invalid value for '--tune'"),
    "seed": ([*FIT, "--seed", "-1"], "Invalid value for '--seed'"),
    "large seed": ([*FIT, "--seed", str(2**32)], "Invalid value for '--seed'"),
    "size": ([*FIT, "--size", "0"], "Invalid value for '--size'"),
    "isotropic": ([*FIT, "--isotropic=1"], "Option '--isotropic' does not take a value."),
    "resume": ([*FIT, "--resume=1"], "Option '--resume' does not take a value."),
    # one of a list, and what is planned
    "model": (
        [*FIT, "--model", "Gaussian"],
        "--model: expected one of gaussian, stationary, uniform, found 'Gaussian'",
    ),
    "later model": (
        [*FIT, "--model", "lowrank"],
        "--model lowrank is not available yet; choose one of gaussian, stationary, uniform",
    ),
    "covariance": ([*FIT, "--covariance", "x"], "--covariance: expected one of isotropic, diagonal, found 'x'"),
    "full covariance": (
        [*FIT, "--covariance", "full"],
        "--covariance full is not available yet; choose one of isotropic, diagonal",
    ),
    "amplitude": ([*FIT, "--amplitude", "x"], "--amplitude: expected one of fixed, learn, found 'x'"),
    "center": ([*FIT, "--center", "x"], "--center: expected one of origin, centroid, window, learn, found 'x'"),
    "learned center of stationary": (
        [*FIT, "--center", "learn"],
        "--center with --model stationary: it has no center; leave out --center",
    ),
    "learned center on items": (
        [*ON_ITEMS, "--center", "learn"],
        "--center: expected points; on items the center of the quality is the origin",
    ),
    "prior of a center that is not learned": (
        ["fit", "p.csv", "--prior", "mu=Normal(0,1)", "--out", "out"],
        "prior mu: expected one of alpha, rho[0], rho[1], sigma[0], sigma[1], found mu",
    ),
    "prior of a center on positive numbers": (
        ["fit", "p.csv", "--center", "learn", "--prior", "mu=Gamma(1,1)", "--out", "out"],
        "--prior mu=Gamma(1,1): expected one of Cauchy, Laplace, Logistic, Normal, StudentT, Uniform, found 'Gamma'",
    ),
    "sampler": (
        [*FIT, "--sampler", "x"],
        "--sampler: expected one of slice, axes, random-direction, hyperrectangle, metropolis, found 'x'",
    ),
    "later sampler": (
        [*FIT, "--sampler", "nuts"],
        "--sampler nuts is not available yet; choose one of slice, axes, random-direction, hyperrectangle, metropolis",
    ),
    "normalizer": ([*FIT, "--normalizer", "x"], "--normalizer: expected one of auto, exact, found 'x'"),
    "later normalizer": (
        [*FIT, "--normalizer", "landmarks"],
        "--normalizer landmarks is not available yet; choose one of auto, exact",
    ),
    "prior set": ([*FIT, "--prior-set", "x"], "--prior-set: expected one of default, paper, found 'x'"),
    # files and folders
    "data": (
        ["fit", "cell", "--out", "out"],
        "cell: expected a file or a shipped data set (cells, swedishpines, japanesepines, pyramidal, redwood), "
        "found neither",
    ),
    "a folder": (
        ["fit", "full", "--out", "out"],
        "full: expected a file, found a folder",
    ),
    "not text": (
        ["fit", "i.csv", "--out", "out"],
        "i.csv: row 1: expected columns pattern, x[, y[, z]], found id, f",
    ),
    "windows": (
        replaced(FIT, windows="no.csv"),
        "no.csv: expected a file, found nothing there",
    ),
    "items": (replaced(ON_ITEMS, items="no.csv"), "no.csv: expected a file, found nothing there"),
    "out is a file": (replaced(FIT, out="file"), "--out file: expected a folder, found a file"),
    "out is full": (
        replaced(FIT, out="full"),
        "--out full: expected a new or empty folder, found files in it; --resume goes on with a run",
    ),
    "out under a file": (replaced(FIT, out="file/out"), "--out file/out: expected a place to write to, found that "),
    # options that contradict each other or the data
    "items with points": (
        [*FIT, "--items", "i.csv"],
        "p.csv: --items goes with subsets (JSON, or columns set,item), found pattern, x, y",
    ),
    "subsets without items": (
        ["fit", "s.json", "--out", "out"],
        "s.json: holds subsets, expected the items they are taken from; add --items FILE",
    ),
    "windows with subsets": (
        [*ON_ITEMS, "--windows", "w.csv"],
        "s.json: holds subsets of items, which have no windows; leave out --windows",
    ),
    "shipped with windows": (
        ["fit", "cells", "--windows", "w.csv", "--out", "out"],
        "--windows w.csv: the shipped data set cells comes complete; leave out --windows",
    ),
    "shipped with items": (
        ["fit", "cells", "--items", "i.csv", "--out", "out"],
        "--items i.csv: the shipped data set cells comes complete; leave out --items",
    ),
    "stationary without windows": (
        ["fit", "p.csv", "--model", "stationary", "--out", "out"],
        "--model stationary: expected points with windows; add --windows FILE",
    ),
    "stationary on items": (
        [*ON_ITEMS, "--model", "stationary"],
        "--model stationary: expected points with windows, found subsets of items",
    ),
    "uniform without windows": (
        ["fit", "p.csv", "--model", "uniform", "--out", "out"],
        "--model uniform: expected points with windows, or subsets; add --windows FILE",
    ),
    "size with stationary": (
        [*FIT, "--size", "3"],
        "--size with --model stationary: its number of points is random; leave out --size",
    ),
    "size with amplitude": (
        [*ON_ITEMS, "--size", "2", "--amplitude", "learn"],
        "--size with --amplitude learn: alpha cancels where the size is fixed; leave out one of them",
    ),
    "isotropic and diagonal": (
        [*ON_ITEMS, "--isotropic", "--covariance", "diagonal"],
        "--isotropic with --covariance diagonal: expected one of them, found both",
    ),
    "diagonal stationary": (
        [*FIT, "--covariance", "diagonal"],
        "--covariance diagonal with --model stationary: it is isotropic; leave out --covariance",
    ),
    "amplitude on points": (
        [*FIT, "--amplitude", "learn"],
        "--amplitude: expected subsets of items; on points alpha or the intensity is always learned",
    ),
    "center on items": (
        [*ON_ITEMS, "--center", "origin"],
        "--center: expected points; on items the center of the quality is the origin",
    ),
    "center of stationary": (
        [*FIT, "--center", "origin"],
        "--center with --model stationary: it has no center; leave out --center",
    ),
    "center without windows": (
        ["fit", "p.csv", "--center", "window", "--out", "out"],
        "--center window: expected points with windows; add --windows FILE",
    ),
    "center of uniform": (
        [*FIT, "--model", "uniform", "--center", "origin"],
        "--center with --model uniform: it has no center; leave out --center",
    ),
    # what only the model can refuse
    "another size": (
        ["fit", "p.csv", "--size", "2", "--out", "out"],
        "--size 2: expected 2 points in every pattern, found 1 in pattern 'b'",
    ),
    "another size on a window": (
        [*FIT, "--model", "uniform", "--size", "2"],
        "--size 2: expected 2 points in every pattern, found 1 in pattern 'b'",
    ),
    "another size on items": (
        [*ON_ITEMS, "--size", "2"],
        "--size 2: expected 2 items in every set, found 0 in set '1'",
    ),
    "nothing seen": (
        ["fit", "empty.csv", "--windows", "w2.csv", "--out", "out"],
        "no set holds a point: nothing can be learned",
    ),
    "prior of nothing": (
        [*FIT, "--prior", "tau=Gamma(1,1)"],
        "prior tau: expected one of intensity, repulsion, found tau",
    ),
    "prior of another model": (
        [*FIT, "--prior", "rho=Gamma(1,1)"],
        "prior rho: expected one of intensity, repulsion, found rho",
    ),
    "component of a scalar prior": (
        [*FIT, "--prior", "repulsion[0]=Uniform(0,1)"],
        "prior repulsion[0]: expected one of intensity, repulsion, found repulsion[0]",
    ),
    "component that is not there": (
        ["fit", "p.csv", "--prior", "sigma[2]=Gamma(1,1)", "--out", "out"],
        "prior sigma[2]: expected one of alpha, rho[0], rho[1], sigma[0], sigma[1], found sigma[2]",
    ),
    "prior of an amplitude that cancels": (
        ["fit", "p1.csv", "--size", "2", "--isotropic", "--prior", "alpha=Gamma(1,1)", "--out", "out"],
        "prior alpha: expected one of rho, sigma, found alpha",
    ),
    "prior of a fixed amplitude": (
        [*ON_ITEMS, "--prior", "alpha=Gamma(1,1)"],
        "prior alpha: expected one of gamma[0], sigma[0], found alpha",
    ),
    # simulate
    "no params": (SIMULATE[:3] + SIMULATE[5:], "Missing option '--params'."),
    "no sets": (SIMULATE[:5] + SIMULATE[7:], "Missing option '--sets'."),
    "simulated model": (
        replaced(SIMULATE, model="x"),
        "--model: expected one of gaussian, stationary, uniform, found 'x'",
    ),
    "sets": (replaced(SIMULATE, sets="0"), "Invalid value for '--sets'"),
    "dim": ([*SIMULATE, "--dim", "4"], "Invalid value for '--dim'"),
    "simulated size": ([*SIMULATE, "--size", "0"], "Invalid value for '--size'"),
    "simulated seed": ([*SIMULATE, "--seed", "x"], "Invalid value for '--seed'"),
    "existing file": (replaced(SIMULATE, out="p.csv"), "--out p.csv: expected a new file, found one that exists"),
    "no folder": (
        replaced(SIMULATE, out="no/new.csv"),
        "--out no/new.csv: expected a file in a folder that exists, found no folder no",
    ),
    "form": (
        replaced(SIMULATE, params="alpha:1"),
        "--params: expected NAME=NUMBER or NAME[i]=NUMBER between commas, found 'alpha:1'",
    ),
    "negative": (replaced(SIMULATE, params="alpha=-1"), "--params: expected a positive number for alpha, found '-1'"),
    "no place": (replaced(SIMULATE, params="mu=inf"), "--params: expected a finite number for mu, found 'inf'"),
    "center of uniform items": (
        [*replaced(SIMULATE, model="uniform", params="sigma=1,mu=1"), "--items", "i.csv"],
        "--params: expected sigma, found sigma, mu",
    ),
    "no number": (replaced(SIMULATE, params="alpha=x"), "--params: expected a positive number for alpha, found 'x'"),
    "twice": (
        replaced(SIMULATE, params="alpha=1,alpha=2"),
        "--params: expected alpha once, or alpha[0], alpha[1], … once each, found 'alpha=1,alpha=2'",
    ),
    "missing": (replaced(SIMULATE, params="alpha=1,rho=1"), "--params: expected alpha, rho, sigma, found alpha, rho"),
    "unknown": (
        replaced(SIMULATE, params="alpha=1,rho=1,sigma=1,tau=1"),
        "--params: expected alpha, rho, sigma, found alpha, rho, sigma, tau",
    ),
    "components": (
        replaced(SIMULATE, params="alpha=1,rho=1,sigma[0]=1,sigma[2]=1"),
        "--params: expected sigma or sigma[0] to sigma[1] in dimension 2, found sigma[0], sigma[2]",
    ),
    "component of a scalar": (
        replaced(SIMULATE, params="alpha[0]=1,rho=1,sigma=1"),
        "--params: expected alpha in dimension 2, found alpha[0]",
    ),
    "simulated stationary without windows": (
        replaced(SIMULATE, model="stationary", params="intensity=9,sigma=.1"),
        "--model stationary: expected --windows FILE, found none",
    ),
    "simulated uniform without windows": (
        replaced(SIMULATE, model="uniform", params="alpha=9,sigma=.1"),
        "--model uniform: expected --windows FILE or --items FILE, found neither",
    ),
    "gaussian on windows": (
        [*SIMULATE, "--windows", "w.csv"],
        "--model gaussian lives on all of space: leave out --windows, or choose stationary or uniform",
    ),
    "too repulsive": (
        [*replaced(SIMULATE, model="stationary", params="intensity=9,repulsion=1.5"), "--windows", "w.csv"],
        "--params: expected repulsion = intensity (2 pi sigma^2)^(D/2) <= 1, found 1.5",
    ),
    "sigma and repulsion": (
        [*replaced(SIMULATE, model="stationary", params="intensity=9,repulsion=1,sigma=1"), "--windows", "w.csv"],
        "--params: expected intensity, repulsion (or repulsion in place of sigma), found intensity, repulsion, sigma",
    ),
    "stationary of a size": (
        [*replaced(SIMULATE, model="stationary", params="intensity=9,sigma=.1"), "--windows", "w.csv", "--size", "3"],
        "--size with --model stationary: its number of points is random; leave out --size",
    ),
    "two windows": (
        [*replaced(SIMULATE, model="uniform", params="alpha=9,sigma=.1"), "--windows", "w2.csv"],
        "w2.csv: row 3: expected one window for every set, found a second",
    ),
    "items and windows": (
        [*SIMULATE, "--items", "i.csv", "--windows", "w.csv"],
        "--items and --windows: expected one of them, found both",
    ),
    "dim and items": (
        [*SIMULATE, "--items", "i.csv", "--dim", "2"],
        "--dim 2: the dimension is that of --items; leave out --dim",
    ),
    "larger than the base set": (
        [*replaced(SIMULATE, params="sigma=1,gamma=1"), "--items", "i.csv", "--size", "4"],
        "--size 4: expected at most 3, the number of items",
    ),
    "datasets takes nothing": (["datasets", "cells"], "Got unexpected extra argument"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(folder, capsys, arguments, message):
    before = snapshot(folder)
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert snapshot(folder) == before


PRIOR_MISTAKES = {
    "sigma": "expected NAME=Dist(a,b) as in sigma=LogNormal(0,1), found 'sigma'",
    "sigma=LogNormal": "expected NAME=Dist(a,b) as in sigma=LogNormal(0,1), found 'sigma=LogNormal'",
    "sigma=Normal(0,1)": "expected one of Beta, BetaProportion, ",
    "sigma=Poisson(1)": "expected one of Beta, BetaProportion, ",
    "sigma=LogNormal(a,b)": "expected numbers in the brackets, found 'a,b'",
    "sigma=LogNormal(0,1,2)": "expected valid LogNormal(loc, scale), found (0,1,2)",
    "sigma=LogNormal(0,-1)": "expected valid LogNormal(loc, scale), found (0,-1)",
    "sigma=Gamma()": "expected valid Gamma(concentration, rate), found ()",
    "sigma=Uniform(-1,1)": "expected a prior on positive numbers, found one from -1 to 1",
    "sigma=Uniform(2,1)": "expected finite numbers in increasing order, found (2,1)",
    "sigma=Gamma(1,inf)": "expected finite numbers in increasing order, found (1,inf)",
    "repulsion=LogNormal(0,1)": "expected a prior between 0 and 1, found one from 0 to inf",
    "repulsion=Uniform(0,2)": "expected a prior between 0 and 1, found one from 0 to 2",
}


@pytest.mark.parametrize(("text", "message"), PRIOR_MISTAKES.items())
def test_a_wrong_prior(folder, capsys, text, message):
    before = snapshot(folder)
    assert cli.main([*FIT, "--prior", text]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("error: --prior")
    assert err.count("\n") == 1
    assert snapshot(folder) == before


def test_a_second_prior_for_one_name(folder, capsys):
    assert cli.main([*FIT, "--prior", "sigma=Gamma(1,1)", "--prior", "sigma=Gamma(2,1)"]) == 2
    assert "expected one prior for sigma, found a second" in capsys.readouterr().err


@pytest.mark.parametrize("kind", cli.PRIORS)
def test_every_prior_on_the_list_is_one_of_numpyro(kind):
    distribution = getattr(dist, kind)
    assert issubclass(distribution, dist.Distribution)
    numbers = ",".join(["0.25", "0.75"][: len(distribution.arg_constraints)])
    parsed = cli._parse_priors([f"sigma[1] = {kind}({numbers})"])["sigma[1]"]
    assert type(parsed) is distribution
    assert parsed.batch_shape == parsed.event_shape == ()


def test_priors_keep_every_digit():
    assert float(cli._parse_priors(["sigma=LogNormal(0.1, 0.3)"])["sigma"].loc) == 0.1


# What follows the checks, with a stand-in for the fit


class Interrupted(KeyboardInterrupt):
    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


@pytest.fixture
def stand_in(folder, monkeypatch):
    """Records what the models and the fit are given; `outcome` says what the fit does."""
    seen = SimpleNamespace(outcome={"converged": True, "undecided": 0, "warnings": []}, raises=None)

    def model(name):
        def build(data, **options):
            seen.model, seen.data, seen.options = name, data, options
            return SimpleNamespace(priors={"sigma": dist.LogNormal(0.0, 1.0)})

        return build

    def fit(model, *, progress, **settings):
        seen.settings = settings
        for phase, total in (("compile", 1), ("tune", 100), ("draw", 100)):
            for done in range(0, total + 1, min(total, 5)):
                progress(phase, done, total)
        if seen.raises:
            raise seen.raises
        summary = {key: seen.outcome[key] for key in ("converged", "warnings")}
        summary["decisions"] = {"undecided": seen.outcome["undecided"]}
        return SimpleNamespace(summary=summary, table=lambda: "a table")

    for name in ("gaussian", "stationary", "uniform"):
        monkeypatch.setattr(dpplearn, name, model(name), raising=False)
    for name in cli.CHOICES["--sampler"]:
        function = f"{name.replace('-', '_')}_sampler"
        monkeypatch.setattr(dpplearn, function, lambda function=function: function, raising=False)
    monkeypatch.setattr(dpplearn, "fit", fit, raising=False)
    return seen


def test_a_fit_prints_priors_progress_table_and_the_path_of_its_report(stand_in, capsys):
    assert cli.main(FIT) == 0
    out, err = capsys.readouterr()
    assert out == "a table\nout/report.html\n"
    expected = [
        "  sigma  LogNormal(0, 1)\n",
        "\ncompiling\n",
        "\nwarm-up 50/100 ",
        "\ndrawing 0/100",
        "\ndrawing 100/100 ",
    ]
    places = [err.index(line) for line in expected]
    assert places == sorted(places)
    assert "steps/s" in err
    assert "warning" not in err


def test_priors_progress_table_warnings_path_in_this_order(stand_in, capfd, monkeypatch):
    monkeypatch.setattr(cli, "_say", lambda message: print(message, flush=True))
    stand_in.outcome |= {"warnings": ["the counts differ"], "converged": False}
    assert cli.main(FIT) == 3
    out = capfd.readouterr().out
    expected = [
        "priors, frozen",
        "compiling",
        "warm-up 0",
        "drawing 100/100",
        "a table",
        "warning: the c",
        "out/report",
    ]
    places = [out.index(line) for line in expected]
    assert places == sorted(places)
    assert out.endswith("\nout/report.html\n")


@pytest.mark.parametrize(
    ("arguments", "model", "options"),
    [
        (FIT, "stationary", {}),
        ([*FIT, "--isotropic"], "stationary", {}),
        (["fit", "cells", "--out", "out"], "stationary", {}),
        (
            ["fit", "p.csv", "--out", "out"],
            "gaussian",
            {"size": None, "covariance": "diagonal", "amplitude": "fixed"},
        ),
        (
            [*FIT, "--model", "gaussian", "--center", "window", "--isotropic"],
            "gaussian",
            {"size": None, "covariance": "isotropic", "amplitude": "fixed", "center": "window"},
        ),
        (
            [*ON_ITEMS, "--amplitude", "learn"],
            "gaussian",
            {"size": None, "covariance": "diagonal", "amplitude": "learn"},
        ),
        (
            ["fit", "s.csv", "--items", "i.csv", "--model", "uniform", "--size", "2", "--out", "out"],
            "uniform",
            {"size": 2, "covariance": "diagonal", "amplitude": "fixed"},
        ),
    ],
)
def test_what_the_model_is_given(stand_in, arguments, model, options):
    assert cli.main(arguments) == 0
    assert stand_in.model == model
    assert stand_in.options == {"priors": {}, "prior_set": "default", **options}
    assert isinstance(stand_in.data, Subsets if "--items" in arguments else PointPatterns)


def test_what_the_fit_is_given(stand_in):
    numbers = ["--chains", "2", "--draws", "30", "--tune", "20", "--seed", "5"]
    extra = ["--sampler", "random-direction", "--prior", "sigma=Gamma(2,3)", "--prior-set", "paper", "--resume"]
    assert cli.main([*replaced(FIT, out="full"), *numbers, *extra]) == 0
    counts = {"chains": 2, "draws": 30, "tune": 20, "seed": 5}
    assert stand_in.settings == {
        "sampler": "random_direction_sampler",
        "out": Path("full"),
        "resume": True,
        **counts,
    }
    assert stand_in.options["prior_set"] == "paper"
    assert isinstance(stand_in.options["priors"]["sigma"], dist.Gamma)


@pytest.mark.parametrize("outcome", [{"converged": False}, {"undecided": 2}])
def test_exit_code_3(stand_in, capsys, outcome):
    stand_in.outcome |= {"warnings": ["the counts differ"], **outcome}
    assert cli.main(FIT) == 3
    out, err = capsys.readouterr()
    assert "warning: the counts differ\n" in err
    assert err.endswith("warning: the results are written, but do not trust them yet\n")
    assert out.endswith("\nout/report.html\n")


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (Interrupted("stopped at 3 of 9; --resume goes on"), "stopped at 3 of 9; --resume goes on"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_exit_code_130(stand_in, capsys, stop, message):
    stand_in.raises = stop
    assert cli.main(FIT) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"{message}\n")


# simulate


@pytest.mark.parametrize(
    ("model", "params", "where", "size", "kernel", "domain"),
    [
        ("gaussian", "alpha=9,rho=1,sigma=.1", [], None, kernels.ContinuousGaussian, RealSpace(2)),
        (
            "gaussian",
            "rho=1,sigma[0]=1,sigma[1]=2,sigma[2]=3",
            ["--dim", "3"],
            4,
            kernels.ContinuousGaussian,
            RealSpace(3),
        ),
        ("uniform", "alpha=9,sigma=.1", ["--windows", "w.csv"], None, kernels.Uniform, Box([0.0, 0.0], [1.0, 1.0])),
        (
            "stationary",
            "intensity=9,sigma=.1",
            ["--windows", "w.csv"],
            None,
            kernels.Stationary,
            Box([0.0, 0.0], [1.0, 1.0]),
        ),
        ("gaussian", "sigma=1,gamma=2", ["--items", "i.csv"], 2, kernels.Gaussian, BaseSet),
        ("uniform", "sigma[0]=1,alpha=2", ["--items", "i.csv"], None, kernels.Gaussian, BaseSet),
    ],
)
def test_what_is_simulated(folder, monkeypatch, capsys, model, params, where, size, kernel, domain):
    seen = {}

    def simulate(rng_key, kernel, domain, sets, size=None):
        seen.update(kernel=kernel, domain=domain, size=size)
        if isinstance(domain, BaseSet):
            return Subsets.from_lists([[0], []], domain)
        return PointPatterns.from_arrays([np.full((1, domain.dim), 0.5), np.zeros((0, domain.dim))])

    monkeypatch.setattr(dpplearn, "simulate", simulate, raising=False)
    out = "new.json" if "--items" in where else "new.csv"
    sized = [] if size is None else ["--size", str(size)]
    arguments = ["simulate", "--model", model, "--params", params, "--sets", "2", "--out", out, *where, *sized]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert isinstance(seen["kernel"], kernel)
    assert seen["size"] == size
    assert isinstance(seen["domain"], BaseSet) if domain is BaseSet else seen["domain"] == domain
    if domain is BaseSet:
        assert json.loads(Path(out).read_text()) == [[0], []]
    else:
        windows = "new_windows.csv" if "--windows" in where else None
        assert list(readers.read_file(out, windows=windows).counts) == [1, 0]


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_repulsion_and_sigma_say_the_same(dim):
    repulsion = 0.6
    values = cli._stationary_arguments({"intensity": 80.0, "repulsion": repulsion}, dim)
    assert math.isclose(80 * (2 * math.pi * values["sigma"] ** 2) ** (dim / 2), repulsion, rel_tol=1e-12)


def test_components_become_an_array():
    values = cli._parse_params("rho = 2, sigma[1]=3,sigma[0]=1e-1")
    assert cli._components("rho", values["rho"], 2) == 2.0
    np.testing.assert_array_equal(cli._components("sigma", values["sigma"], 2), [0.1, 3.0])


def test_alpha_is_dropped_where_the_size_is_fixed(capsys):
    values = cli._parse_params("alpha=5,rho=1,sigma=.1")
    _, arguments = cli._kernel_of("gaussian", values, RealSpace(2), 6)
    assert arguments == {"rho": 1.0, "sigma": 0.1, "alpha": 1.0}
    assert capsys.readouterr().err == "note: alpha cancels where the size is fixed: it is not used\n"


# the rest


def test_datasets_lists_what_ships(capsys):
    assert cli.main(["datasets"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name}: " in out for name in datasets.names())
    assert "pyramidal      31        1400    [0, 1] x [0, 1]     unit\n" in out
    assert "spatstat.data (GPL 2 or later)" in out


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{dpplearn.__version__}\n"
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("fit", "simulate", "datasets"))


def test_the_compilation_cache_is_the_users_and_off_where_it_cannot_be_written(tmp_path, monkeypatch):
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir",)}
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        cli._use_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "dpplearn" / "jax")
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        cli._use_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "dpplearn" / "jax")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(dpplearn.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "XDG_CACHE_HOME": str(cwd / ".cache"), "COLUMNS": "40"}
    command = [sys.executable, "-m", "dpplearn.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments", [["fit", "nothing", "--out", "out"], ["fit", "--out", "out"], [*FIT, "--model", "lowrank"]]
)
def test_a_mistake_in_a_process_of_its_own(folder, arguments):
    before = snapshot(folder)
    result = run(*arguments, cwd=folder)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert snapshot(folder) == before


def test_help_needs_no_heavy_import(tmp_path):
    code = (
        "import sys; from dpplearn import cli; cli.main(['--help']); "
        "sys.exit(bool({'jax', 'arviz_base', 'matplotlib'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(dpplearn.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert result.returncode == 0


# the whole journey, in this process, with few draws


FEW = ["--chains", "2", "--draws", "6", "--tune", "10"]


def points_csv(path: str, counts: tuple[int, ...], dim: int, scale: float = 1.0, unit: str = "") -> None:
    """Random patterns in the unit cube, and `windows.csv` beside them."""
    rng = np.random.default_rng(1)
    axes = "xyz"[:dim]
    rows = [f"{t}," + ",".join(map(str, scale * rng.random(dim))) for t, n in enumerate(counts) for _ in range(n)]
    Path(path).write_text("\n".join([f"pattern,{','.join(axes)}", *rows]) + "\n")
    ends = ",".join(f"{a}min,{a}max" for a in axes)
    windows = [f"{t},{','.join(['0', str(scale)] * dim)},{unit}" for t in range(len(counts))]
    Path("windows.csv").write_text("\n".join([f"pattern,{ends},unit", *windows]) + "\n")


def fitted(capsys, *arguments: str) -> tuple[dict, str]:
    """The summary and what was printed."""
    assert cli.main([*arguments, "--out", "out", *FEW]) == 3  # so few draws never converge
    out, err = capsys.readouterr()
    assert out.endswith("\nout/report.html\n")
    assert "warning: not converged" in err
    assert Path("out/report.html").exists()
    return json.loads(Path("out/summary.json").read_text()), err


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing them takes longer than such short runs."""
    monkeypatch.setattr("dpplearn.plots.png", lambda _: b"")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cells", 42),
        pytest.param("swedishpines", 71, marks=pytest.mark.slow),
        pytest.param("japanesepines", 65, marks=pytest.mark.slow),
        pytest.param("redwood", 62, marks=pytest.mark.slow),
        pytest.param("pyramidal", 1400, marks=pytest.mark.slow),
    ],
)
def test_shipped_data(folder, capsys, name, count):
    summary, _ = fitted(capsys, "fit", name)
    assert summary["model"] == "stationary"
    assert summary["data"]["points"] == count
    if name == "pyramidal":
        assert "differ in their counts" in summary["warnings"][0]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("dim", "options", "names"),
    [
        pytest.param(1, ["--windows", "windows.csv"], {"intensity", "repulsion"}, marks=pytest.mark.slow),
        pytest.param(
            1,
            ["--windows", "windows.csv", "--model", "uniform"],
            {"alpha", "sigma[0]"},
            marks=pytest.mark.slow,
        ),
        (2, ["--prior", "rho=Gamma(2,1)"], {"alpha", "rho[0]", "rho[1]", "sigma[0]", "sigma[1]"}),
        pytest.param(2, ["--center", "origin", "--isotropic"], {"alpha", "rho", "sigma"}, marks=pytest.mark.slow),
        pytest.param(2, ["--size", "9", "--isotropic"], {"rho", "sigma"}, marks=pytest.mark.slow),
        pytest.param(
            2,
            ["--windows", "windows.csv", "--model", "uniform", "--size", "9", "--isotropic"],
            {"sigma"},
            marks=pytest.mark.slow,
        ),
        pytest.param(3, ["--isotropic"], {"alpha", "rho", "sigma"}, marks=pytest.mark.slow),
        pytest.param(3, ["--windows", "windows.csv"], {"intensity", "repulsion"}, marks=pytest.mark.slow),
    ],
)
def test_points_of_any_dimension(folder, capsys, dim, options, names):
    points_csv("points.csv", (9, 9), dim, unit="mm")
    summary, err = fitted(capsys, "fit", "points.csv", *options)
    assert set(summary["parameters"]) == names
    assert summary["data"]["dimension"] == dim
    if "--windows" in options:
        power = {1: "", 2: "²", 3: "³"}[dim]
        assert summary["units"].get("intensity", f"1/mm{power}") == f"1/mm{power}"
    if "--prior" in options:
        assert "  rho    Gamma(2, 1)\n" in err


def items_file(name: str) -> None:
    x = np.random.default_rng(2).normal(size=(15, 2))
    if name.endswith(".npy"):
        np.save(name, x)
    elif name.endswith(".parquet"):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"f": x[:, 0], "g": x[:, 1]}), name)
    else:
        Path(name).write_text("id,f,g\n" + "".join(f"n{i},{a},{b}\n" for i, (a, b) in enumerate(x)))


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("items", ["items.csv", "items.npy", "items.parquet"])
@pytest.mark.parametrize("subsets", ["sets.json", "sets.csv"])
def test_subsets_in_every_format_give_the_same_draws(folder, capsys, items, subsets, draws_of_subsets):
    items_file(items)
    sets = [[0, 3, 7], [1, 4, 9], [2, 8, 14]]
    rows = [f"{t},{i}" for t, chosen in enumerate(sets) for i in chosen]
    text = json.dumps(sets) if subsets.endswith("json") else "\n".join(["set,item", *rows]) + "\n"
    Path(subsets).write_text(text)
    summary, _ = fitted(capsys, "fit", subsets, "--items", items, "--size", "3", "--isotropic")
    assert set(summary["parameters"]) == {"gamma", "sigma"}
    draws_of_subsets.append(summary["parameters"])
    assert summary["parameters"] == draws_of_subsets[0]


@pytest.fixture(scope="module")
def draws_of_subsets() -> list[dict]:
    return []


SIMULATED = {  # model, parameters, where, and what fit is given besides
    "stationary": ("stationary", "intensity=15,repulsion=.5", ["--windows", "w.csv"], []),
    "uniform": ("uniform", "alpha=20,sigma=.1", ["--windows", "w.csv"], ["--model", "uniform", "--isotropic"]),
    "gaussian": ("gaussian", "alpha=20,rho=1,sigma=.2", [], ["--isotropic"]),
    "gaussian around a center": (
        "gaussian",
        "alpha=20,rho=1,sigma=.2,mu[0]=50,mu[1]=-30",
        [],
        ["--isotropic", "--center", "learn", "--prior", "mu[1]=Normal(-30,2)"],
    ),
    "gaussian, a k-DPP in 3-D": (
        "gaussian",
        "rho=1,sigma=.2",
        ["--dim", "3", "--size", "5"],
        ["--isotropic", "--size", "5"],
    ),
    "gaussian on items": ("gaussian", "gamma=1,sigma=.5", ["--items", "items.csv"], ["--isotropic"]),
    "uniform on items": (
        "uniform",
        "sigma=.5,alpha=.3",
        ["--items", "items.csv"],
        ["--model", "uniform", "--amplitude", "learn", "--isotropic"],
    ),
    "a k-DPP on items": (
        "uniform",
        "sigma=.5",
        ["--items", "items.csv", "--size", "3"],
        ["--model", "uniform", "--size", "3", "--isotropic"],
    ),
}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "case",
    [name if name == "gaussian on items" else pytest.param(name, marks=pytest.mark.slow) for name in SIMULATED],
)
def test_what_simulate_writes_fit_reads(folder, capsys, case):
    model, params, where, options = SIMULATED[case]
    items_file("items.csv")
    drawn = "drawn.json" if "--items" in where else "drawn.csv"
    simulate = ["simulate", "--model", model, "--params", params, "--sets", "3", "--seed", "1", "--out", drawn]
    assert cli.main([*simulate, *where]) == 0
    out, err = capsys.readouterr()
    assert out == f"{drawn}\n"
    first = Path(drawn).read_text()
    if "--windows" in where:
        assert err == "note: fit with --windows drawn_windows.csv\n"
        where = ["--windows", "drawn_windows.csv"]
    elif "--items" in where:
        where = where[:2]
    else:
        where = []
    summary, _ = fitted(capsys, "fit", drawn, *where, *options)
    assert summary["model"] == model
    assert summary["data"]["sets" if drawn.endswith("json") else "patterns"] == 3
    Path(drawn).unlink()
    Path("drawn_windows.csv").unlink(missing_ok=True)
    again = [a if a != "drawn_windows.csv" else "w.csv" for a in [*simulate, *SIMULATED[case][2]]]
    assert cli.main(again) == 0
    assert Path(drawn).read_text() == first  # one seed, one result


def test_exit_code_0_and_every_file(folder, capsys):
    """A run long enough to converge; then --resume with the same options changes nothing and ends the same."""
    items_file("items.csv")
    Path("sets.json").write_text(json.dumps([[0, 3], [1, 9], [2, 14], [7], [4, 5, 6]]))
    arguments = ["fit", "sets.json", "--items", "items.csv", "--model", "uniform", "--isotropic", "--out", "out"]
    arguments += ["--draws", "700", "--tune", "300"]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "not converged" not in err
    names = [
        "posterior.nc",
        "summary.json",
        "run.json",
        "report.html",
        "trace.png",
        "autocorrelation.png",
        "moments.png",
    ]
    assert {path.name for path in Path("out").iterdir()} == {*names, "checkpoint"}
    before = {name: (Path("out") / name).stat().st_mtime_ns for name in names}
    assert cli.main([*arguments, "--resume"]) == 0
    assert capsys.readouterr().out == out
    assert {name: (Path("out") / name).stat().st_mtime_ns for name in names} == before
    assert cli.main([*arguments, "--resume", "--seed", "1"]) == 2
    assert capsys.readouterr().err == "error: --resume out: expected seed 0, as in the run there, found 1\n"


@pytest.mark.parametrize("first", ["import dpplearn.simulate", "from dpplearn.simulate import simulate", "pass"])
def test_simulate_is_a_function_whether_its_module_was_imported_or_not(tmp_path, first):
    code = (
        f"{first}\nimport jax, numpy as np, dpplearn as dpp\n"
        "drawn = dpp.simulate(jax.random.key(0), dpp.kernels.Gaussian(sigma=1.0), np.eye(3), 2)\n"
        "assert len(drawn) == 2\n"
        "from dpplearn.simulate import simulate\nassert callable(simulate)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(dpplearn.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)

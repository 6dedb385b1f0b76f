"""The documentation is true: every example runs, and every check that the errata page names exists."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dpplearn

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FEW = {"chains": 2, "draws": 50, "tune": 50}


def examples(page: Path) -> list[tuple[str, str]]:
    """The language and text of each fenced Python or shell block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def write_inputs(folder: Path) -> None:
    """The files that the examples read: three patterns with windows, a grid of items with subsets, embeddings."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, 5)] * 2), -1).reshape(-1, 2)
    points = [f"p{t},{x:.6f},{y:.6f}" for t in range(3) for x, y in grid + rng.uniform(-0.07, 0.07, grid.shape)]
    windows = [f"p{t},-0.6,0.6,-0.6,0.6" for t in range(3)]
    (folder / "cells.csv").write_text("\n".join(["pattern,x,y", *points]) + "\n")
    (folder / "windows.csv").write_text("\n".join(["pattern,xmin,xmax,ymin,ymax", *windows]) + "\n")
    (folder / "window.csv").write_text("xmin,xmax,ymin,ymax\n0,1,0,1\n")
    (folder / "items.csv").write_text("\n".join(["x,y", *(f"{x},{y}" for x, y in grid)]) + "\n")
    (folder / "subsets.json").write_text(json.dumps([[0, 4, 12, 20, 24], [2, 10, 14, 22], [0, 7, 13, 21, 24]]))
    np.save(folder / "embeddings.npy", rng.normal(size=(25, 3)))


def run_commands(text: str) -> None:
    """Run each `dpplearn` line as a user would, a fit with few draws (which may end with 3: not converged)."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["dpplearn"]:
            continue
        is_fit = words[1] == "fit"
        few = [word for name, value in FEW.items() for word in (f"--{name}", str(value))] if is_fit else []
        program = [sys.executable, "-m", "dpplearn.cli"]
        run = subprocess.run([*program, *words[1:], *few], capture_output=True, text=True, check=False)
        assert run.returncode in ((0, 3) if is_fit else (0,)), f"{line}\n{run.stdout}\n{run.stderr}"


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))
    write_inputs(tmp_path)
    full_fit = dpplearn.fit
    monkeypatch.setattr(dpplearn, "fit", lambda model, **options: full_fit(model, **{**options, **FEW}))
    names: dict[str, object] = {}
    with jax.enable_x64(False):  # as a user finds it
        for language, text in examples(page):
            if language == "python":
                exec(compile(text, str(page), "exec"), names)
            else:
                run_commands(text)


def test_errata_name_checks_that_exist():
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"))
    assert named
    for path, test in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{test}"


def test_the_benchmarks_page_is_made_from_the_results():
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page.text()


def test_equations_are_numbered_in_order():
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    numbers = [int(number) for number in re.findall(r"\s{2,}\((\d+)\)$", blocks, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))

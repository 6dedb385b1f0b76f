"""Importing changes nothing, and no module imports one that stands above it."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dpplearn

PACKAGE = Path(dpplearn.__file__).parent

# The order in which one reads the package; a module imports only what stands before it.
ORDER = (
    "errors",
    "domains",
    "data",
    "readers",
    "datasets",
    "kernels",
    "linalg",
    "spectra",
    "likelihood",
    "normalizer",
    "simulate",
    "distribution",
    "model",
    "mcmc",
    "mle",
    "posterior",
    "diagnostics",
    "checks",
    "words",
    "plots",
    "report",
    "inference",
    "cli",
    "__main__",
)

OBSERVE = """
import os, sys, warnings
import numpy as np, jax
def state():
    x64 = jax.config.jax_enable_x64
    backend = sys.modules["matplotlib"].get_backend() if "matplotlib" in sys.modules else None
    return x64, np.geterr(), list(warnings.filters), dict(os.environ), jax.config.jax_compilation_cache_dir, backend
before = state()
import numpyro, scipy.special
filters = list(warnings.filters)
import dpplearn
after = state()
changed = [i for i, (a, b) in enumerate(zip(before, after)) if a != b and i != 2]
assert not changed, (changed, before, after)
assert warnings.filters == filters, set(map(str, warnings.filters)) ^ set(map(str, filters))
assert not after[0]
"""


def test_version_is_the_installed_one():
    assert dpplearn.__version__ == version("dpplearn")


def test_importing_prints_nothing_and_changes_nothing():
    run = subprocess.run([sys.executable, "-c", OBSERVE], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("dpplearn.")} & set(ORDER)


def files_of(module: str) -> list[Path]:
    """The file of a module, or the files of its folder."""
    return [path for path in (PACKAGE / f"{module}.py", *(PACKAGE / module).glob("*.py")) if path.exists()]


def test_every_module_has_its_place():
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__"} <= set(ORDER)


@pytest.mark.parametrize("module", [name for name in ORDER if files_of(name)])
def test_nothing_imports_upwards(module: str):
    allowed = {*ORDER[: ORDER.index(module)]}
    for path in files_of(module):
        inside = {module} if path.parent != PACKAGE else set()
        assert imported_modules(path) <= allowed | inside, path


def test_modules_stay_short():
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}

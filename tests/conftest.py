"""What every test has: one BLAS thread, checked shapes, a compilation cache on disk and float64."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

# Every annotated shape of the package is checked at every call: install before its first import.
install_import_hook("dpplearn", "beartype.beartype")

jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    """Building blocks expect float64; drivers enter it themselves, so that nothing is set globally."""
    with jax.enable_x64(True):
        yield

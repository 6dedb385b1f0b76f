"""What the benchmarks share: the paper's grid data, medians, and where results go."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import numpy as np

import dpplearn as dpp

RESULTS = Path(__file__).parent / "results"
GAMMA, SIGMA = np.array([0.5, 0.5]), np.array([0.1, 0.2])


def paper_grid(side: int = 10) -> np.ndarray:
    """The grid of the paper's first experiment: side x side points on [-1/2, 1/2]²."""
    axis = np.linspace(-0.5, 0.5, side)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


def paper_sets(seed: int = 0, sets: int = 100) -> dpp.Subsets:
    """Sets simulated from the paper's kernel on the grid."""
    with jax.enable_x64(True):
        kernel = dpp.kernels.Gaussian(gamma=GAMMA, sigma=SIGMA)
        return dpp.simulate(jax.random.key(seed), kernel, paper_grid(), sets)


def median_seconds(function: Callable[[], Any], repeats: int = 15) -> float:
    """The median wall time of a call, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def keep(name: str, result: dict[str, Any]) -> None:
    """Write a result with the machine it comes from, and print it."""
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**result, "machine": machine, "jax": jax.__version__}, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)

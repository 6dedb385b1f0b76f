"""How long the command line takes for a pattern of 100 points, for the first time and again; and one likelihood.

`gaussian --isotropic` on R^2 and `stationary` on the unit square, 4 chains of 1000 warm-up steps and 1000 draws. The
first run has an empty compilation cache. Likelihoods are beside the same numbers in plain NumPy, in the same process.
Run: python benchmarks/bench_fit.py
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from common import keep, median_seconds

import dpplearn as dpp
from dpplearn.kernels import ContinuousGaussian, Stationary
from dpplearn.model.density import log_likelihood
from dpplearn.readers import write_points, write_windows

COUNT = 100
UNIT = dpp.Box([0, 0], [1, 1])


def cloud() -> dpp.PointPatterns:
    """A 100-DPP around the origin."""
    kernel = ContinuousGaussian(alpha=1.0, rho=1.0, sigma=0.1)
    return dpp.simulate(jax.random.key(0), kernel, dpp.RealSpace(2), 1, size=COUNT)


def seen_through_a_window() -> dpp.PointPatterns:
    """The first of many stationary patterns of repulsion .6 that has 100 points."""
    sigma = float(np.sqrt(0.6 / COUNT / (2 * np.pi)))
    drawn = dpp.simulate(jax.random.key(0), Stationary(intensity=float(COUNT), sigma=sigma), UNIT, 200)
    return dpp.PointPatterns.from_arrays([next(x for x in drawn.arrays() if len(x) == COUNT)], window=UNIT)


def timed_fit(arguments: list[str], out: Path, cache: Path) -> dict[str, float | bool]:
    command = [sys.executable, "-m", "dpplearn.cli", "fit", *arguments, "--out", str(out)]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    summary = json.loads((out / "summary.json").read_text())
    parameters = summary["parameters"].values()
    return {
        "seconds": seconds,
        **summary["timing"],
        "largest_r_hat": max(p["r_hat"] for p in parameters),
        "fewest_effective_draws": min(p[key] for p in parameters for key in ("ess_bulk", "ess_tail")),
        "likelihood_evaluations": summary["decisions"]["likelihood_evaluations"],
        "converged": summary["converged"],
    }


def fits(folder: Path) -> dict[str, dict[str, dict[str, float | bool]]]:
    write_points(folder / "cloud.csv", cloud())
    write_points(folder / "window.csv", seen_through_a_window())
    write_windows(folder / "windows.csv", seen_through_a_window())
    runs = {
        "gaussian": [str(folder / "cloud.csv"), "--isotropic"],
        "stationary": [str(folder / "window.csv"), "--windows", str(folder / "windows.csv")],
    }
    return {
        name: {
            when: timed_fit(arguments, folder / f"{name}-{when}", folder / f"cache-{name}")
            for when in ("first", "again")
        }
        for name, arguments in runs.items()
    }


def one_likelihood() -> dict[str, dict[str, float]]:
    """Milliseconds by repulsion, and those of the plain NumPy way with a dense quadrature of K's spectrum."""
    data = seen_through_a_window()
    points = data.arrays()[0]
    result = {}
    with jax.enable_x64(True):
        observed = dpp.stationary(data).problem.observed
        value = jax.jit(
            lambda s, o: log_likelihood(Stationary(intensity=jnp.asarray(100.0), sigma=s), o, None)[0].upper
        )
        for repulsion in (0.9, 0.6, 0.3, 0.1, 0.05):
            sigma = float(np.sqrt(repulsion / COUNT / (2 * np.pi)))
            # by turns, so that a noisy neighbour meets both
            rounds = [
                (
                    median_seconds(lambda s=sigma: value(jnp.asarray(s), observed).block_until_ready(), 100),
                    median_seconds(lambda s=sigma: plain_stationary(points, 100.0, s), 3),
                )
                for _ in range(7)
            ]
            ours, plain = np.median(rounds, axis=0)
            assert abs(float(value(jnp.asarray(sigma), observed)) - plain_stationary(points, 100.0, sigma)) < 1e-5
            result[f"{repulsion:g}"] = {"dpplearn_ms": 1e3 * ours, "numpy_ms": 1e3 * plain, "ratio": plain / ours}
    return result


def plain_stationary(x: np.ndarray, intensity: float, sigma: float) -> float:
    """log det(I - K) + log det L_A, L = K + K² (I - K)⁻¹, from the tensor modes of K on Gauss nodes."""
    t, w = np.polynomial.legendre.leggauss(int(3.5 / sigma) + 16)
    t, w = (t + 1) / 2, np.sqrt(w / 2)
    e, v = np.linalg.eigh(w[:, None] * np.exp(-((t[:, None] - t) ** 2) / (2 * sigma**2)) * w)
    features = [np.exp(-((x[:, d, None] - t) ** 2) / (2 * sigma**2)) @ (w[:, None] * v) for d in range(2)]
    kappa = intensity * np.outer(e, e)
    i, j = np.nonzero(kappa > 1e-7)
    kappa, modes = kappa[i, j], intensity * features[0][:, i] * features[1][:, j]
    distances = np.sum((x[:, None] - x) ** 2, axis=-1)
    matrix = intensity * np.exp(-distances / (2 * sigma**2)) + (modes / (1 - kappa)) @ modes.T
    return np.sum(np.log1p(-kappa) + kappa) - intensity + np.linalg.slogdet(matrix)[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keep(
            "fit", {"points": COUNT, "fits": fits(Path(folder)), "stationary_likelihood_by_repulsion": one_likelihood()}
        )


if __name__ == "__main__":
    main()

"""Recovery of the stationary model on 100 simulated patterns per setting, beside spatstat's estimators.

Patterns in the unit square at (intensity, sigma) = (80, .0389) and (80, .0212); default priors. Coverage of the 90 %
intervals of repulsion and intensity; RMSE of the posterior mean of √2 σ against mincon, palm and clik2 on the same
patterns where R with spatstat is installed. Run: python benchmarks/bench_stationary_recovery.py
"""

import csv
import shutil
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from common import keep

SETTINGS = ((80.0, 0.0389), (80.0, 0.0212))
COUNT = 100


def fit_one(points: np.ndarray, seed: int) -> dict[str, float]:
    import dpplearn as dpp

    data = dpp.PointPatterns.from_arrays([points], window=dpp.Box([0, 0], [1, 1]))
    fit = dpp.fit(dpp.stationary(data), seed=seed, chains=1, draws=800, tune=300)
    row = {"alpha": float(np.sqrt(2) * fit.posterior["sigma"].values.mean())}
    for name in ("repulsion", "intensity"):
        row |= {f"{name}_{q}": fit.summary["parameters"][name][q] for q in ("q05", "q95")}
    row["ess"] = min(p[key] for p in fit.summary["parameters"].values() for key in ("ess_bulk", "ess_tail"))
    row["undecided_or_lost"] = fit.summary["decisions"]["undecided"] + fit.summary["lost_digits"]
    return row


def fits_of(patterns: list[np.ndarray]) -> list[dict[str, float]]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(fit_one, patterns, range(len(patterns)), chunksize=5))


def spatstat_alphas(patterns: list[np.ndarray]) -> dict[str, np.ndarray] | None:
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        points, fitted = Path(folder) / "points.csv", Path(folder) / "fits.csv"
        with points.open("w", newline="") as file:
            rows = [(t, *xy) for t, pattern in enumerate(patterns) for xy in pattern.tolist()]
            csv.writer(file).writerows([("pattern", "x", "y"), *rows])
        script = Path(__file__).with_name("spatstat_fits.R")
        if subprocess.run(["Rscript", script, points, fitted], check=False).returncode:
            return None
        with fitted.open() as file:
            rows = list(csv.DictReader(file))
    methods = dict.fromkeys(row["method"] for row in rows)
    return {
        m: np.array([float(r["alpha"]) if r["alpha"] != "NA" else np.nan for r in rows if r["method"] == m])
        for m in methods
    }


def main() -> None:
    import jax

    import dpplearn as dpp

    result = {}
    for number, (intensity, sigma) in enumerate(SETTINGS):
        with jax.enable_x64(True):
            kernel = dpp.kernels.Stationary(intensity=intensity, sigma=sigma)
            drawn = dpp.simulate(jax.random.key(number), kernel, dpp.Box([0, 0], [1, 1]), COUNT)
        patterns = drawn.arrays()
        rows = fits_of(patterns)
        truth = {"repulsion": 2 * np.pi * intensity * sigma**2, "intensity": intensity}
        covered = {
            name: float(np.mean([row[f"{name}_q05"] <= value <= row[f"{name}_q95"] for row in rows]))
            for name, value in truth.items()
        }
        alpha = np.sqrt(2) * sigma
        rmse = {"dpplearn": float(np.sqrt(np.mean([(row["alpha"] - alpha) ** 2 for row in rows])))}
        for method, values in (spatstat_alphas(patterns) or {}).items():
            rmse[f"spatstat_{method}"] = float(np.sqrt(np.nanmean((values - alpha) ** 2)))
        peers = [value for name, value in rmse.items() if name != "dpplearn"]
        result[f"intensity {intensity:g}, sigma {sigma:g}"] = {
            "truth": truth | {"alpha": float(alpha)},
            "coverage_of_90_percent_intervals": covered,
            "rmse_of_alpha": rmse,
            "ratio_to_best_spatstat": rmse["dpplearn"] / min(peers) if peers else None,
            "fewest_effective_draws": min(row["ess"] for row in rows),
            "undecided_or_lost": sum(row["undecided_or_lost"] for row in rows),
        }
    keep("stationary_recovery", {"patterns_per_setting": COUNT, **result})


if __name__ == "__main__":
    main()

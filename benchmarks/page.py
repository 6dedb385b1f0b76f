"""Writes docs/benchmarks.md from benchmarks/results/*.json. Run last by `make bench`."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def text() -> str:
    """The page, in words and tables, from the results as they are."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    machine = found["grid_step"]["machine"]
    return f"""# Benchmarks

`make bench` runs all of these and writes this page from what it found. References run in the same process or script,
with one BLAS thread like everything else. The ratios say more than the seconds, which are those of
{machine["cpus"]} cores of {machine["machine"]}, Python {machine["python"]}, JAX {found["grid_step"]["jax"]}.

{_speed(found["grid_step"], found["fit"])}

{_convergence(found["grid_convergence"])}

{_recovery(found["stationary_recovery"])}
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _speed(step: dict[str, Any], fit: dict[str, Any]) -> str:
    ms, ess = step["steps"], step["effective_draws_per_second"]
    grid = _table(
        ["The paper's grid: 100 items, 100 sets, four parameters", "dpplearn", "NumPy", "ratio"],
        [
            [
                f"one Metropolis step; NumPy {how}",
                f"{ms['dpplearn_ms']:.2f} ms",
                f"{ms[f'numpy_{key}_ms']:.2f} ms",
                f"{ms[f'numpy_{key}_ratio']:.1f}",
            ]
            for key, how in (("loop", "set by set"), ("vectorised", "in one padded batch"))
        ]
        + [
            [
                "effective draws per second; NumPy: the vectorised random walk, its scale tuned",
                f"{ess['dpplearn_fit_default']:.0f}",
                f"{ess['numpy_random_walk']:.0f}",
                f"{ess['ratio']:.0f} ({ess['ratio_per_core']:.0f} per core)",
            ]
        ],
    )
    likelihoods = fit["stationary_likelihood_by_repulsion"]
    one = _table(
        [f"One `stationary` likelihood, {fit['points']} points", "dpplearn", "NumPy", "ratio"],
        [
            [f"repulsion {u}", f"{row['dpplearn_ms']:.2f} ms", f"{row['numpy_ms']:.1f} ms", f"{row['ratio']:.1f}"]
            for u, row in likelihoods.items()
        ],
    )
    command = _table(
        [
            f"`dpplearn fit`, {fit['points']} points, 4 chains of 1000 + 1000",
            "first run",
            "again",
            "R-hat",
            "fewest ESS",
        ],
        [
            [
                f"`{name}`",
                f"{runs['first']['seconds']:.0f} s",
                f"{runs['again']['seconds']:.0f} s",
                f"{runs['again']['largest_r_hat']:.3f}",
                f"{runs['again']['fewest_effective_draws']:.0f}",
            ]
            for name, runs in fit["fits"].items()
        ],
    )
    return f"""## Speed

{grid}

{one}

The NumPy likelihood takes the same tensor modes from an eigenproblem on Gauss nodes for each σ.

{command}

The first run compiles; later ones find the programs in the user's cache directory."""


def _convergence(result: dict[str, Any]) -> str:
    off = result["largest_difference_from_slice_in_posterior_sd"]
    table = _table(
        ["sampler", "draws per chain", "mean R-hat", "fewest ESS", "largest difference from `slice`"],
        [
            [
                f"`{name}`",
                f"{row['draws']:,}",
                f"{row['mean_r_hat']:.4f}",
                f"{min(row['ess_bulk'].values()):,.0f}",
                "–" if name == "slice" else f"{off[name]:.3f} sd",
            ]
            for name, row in result["samplers"].items()
        ],
    )
    return f"""## The paper's grid: convergence

Five overdispersed chains under the default prior. The last column is the largest difference in the mean and the 5 % and
95 % quantiles of the four log parameters, in posterior standard deviations.

{table}"""


def _recovery(result: dict[str, Any]) -> str:
    settings = {name: row for name, row in result.items() if isinstance(row, dict) and "rmse_of_alpha" in row}
    methods = list(next(iter(settings.values()))["rmse_of_alpha"])
    table = _table(
        [
            "simulated from",
            "repulsion covered",
            "intensity covered",
            *(f"RMSE, {m.replace('_', ' ')}" for m in methods),
            "ours ÷ best of theirs",
        ],
        [
            [
                name,
                *(f"{row['coverage_of_90_percent_intervals'][key]:.2f}" for key in ("repulsion", "intensity")),
                *(f"{row['rmse_of_alpha'][m]:.4f}" for m in methods),
                f"{row['ratio_to_best_spatstat']:.2f}",
            ]
            for name, row in settings.items()
        ],
    )
    return f"""## Recovery beside spatstat

{result["patterns_per_setting"]} patterns each in the unit square, simulated exactly from the stationary model; default
priors. The first columns are the shares of 90 % intervals that hold the truth; then comes the root mean squared error
of √2 σ: our posterior mean, and spatstat's minimum contrast, Palm likelihood and second-order composite likelihood on
the same patterns.

{table}"""


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(PAGE)

"""What the default priors expect, beside what was seen, for every shipped data set: a figure and a table.

Run: python docs/figures/prior_predictive.py [FIGURE.png]
"""

import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure
from scipy.spatial import KDTree
from scipy.stats import poisson

import dpplearn as dpp
from dpplearn import datasets

DRAWS = 4000
BLUE, VERMILION = "#0072B2", "#D55E00"


def prior_predictive(name: str) -> dict[str, np.ndarray | float]:
    """Counts per pattern (a Poisson count at the drawn intensity) and ranges that the prior of `stationary` expects."""
    data = datasets.load(name)
    with jax.enable_x64(True):
        model = dpp.stationary(data)
        keys = jax.random.split(jax.random.key(0), len(model.priors))
        draws = {k: np.asarray(p.sample(key, (DRAWS,))) for key, (k, p) in zip(keys, model.priors.items(), strict=True)}
    area = np.mean([window.volume for window in data.windows or ()])
    sigma = (draws["repulsion"] / draws["intensity"]) ** (1 / data.dim) / np.sqrt(2 * np.pi)
    counts = poisson.rvs(draws["intensity"] * area, random_state=np.random.default_rng(0))
    neighbours = [KDTree(x).query(x, k=2)[0][:, 1] for x in data.arrays() if len(x) > 1]
    return {
        "counts": np.quantile(counts, [0.05, 0.5, 0.95]),
        "range": np.quantile(sigma * np.sqrt(np.log(20)), [0.05, 0.5, 0.95]),
        "seen_count": float(data.counts.mean()),
        "seen_distance": float(np.median(np.concatenate(neighbours))),
    }


def main(path: Path) -> None:
    rows = {name: prior_predictive(name) for name in datasets.names()}
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    print(f"{'data set':<14} {'mean count':>10}  {'predicted 5-95 %':<18} {'neighbour':>10}  range 5-95 %")
    for i, (name, row) in enumerate(rows.items()):
        for axes, low_high, seen, unit in (
            (left, row["counts"], row["seen_count"], 1.0),
            (right, row["range"], row["seen_distance"], row["seen_distance"]),
        ):
            low, middle, high = np.asarray(low_high) / unit
            axes.plot([low, high], [i, i], color=BLUE, lw=5, alpha=0.45, solid_capstyle="butt")
            axes.plot(middle, i, "|", color=BLUE, ms=12, mew=2)
            axes.plot(float(seen) / unit, i, "o", color=VERMILION, ms=6)
        c, r = row["counts"], row["range"]
        print(
            f"{name:<14} {row['seen_count']:>10.1f}  {c[0]:.0f} to {c[2]:.0f}{'':<10} "
            f"{row['seen_distance']:>9.3g}  {r[0]:.3g} to {r[2]:.3g}"
        )
    left.set(xscale="log", xlabel="points in a pattern", yticks=range(len(rows)), yticklabels=list(rows))
    left.set_xticks([20, 50, 100, 150], ["20", "50", "100", "150"])
    left.set_xticks([], minor=True)
    right.set(xlabel="range of repulsion ÷ neighbour distance", xlim=(0, None))
    handles = [left.plot([], [], color=BLUE, lw=5, alpha=0.45)[0], left.plot([], [], "o", color=VERMILION)[0]]
    figure.legend(
        handles, ["prior: 5 % to 95 %, median", "observed"], loc="outside upper center", ncols=2, frameon=False
    )
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "images" / "prior_predictive.png"))

"""A fit in words: sentences built from the numbers of its summary, as plain text.

They need a fit's `summary`, `model` and `prior_draws`. A number that does not exist (null) is never spoken of.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpplearn.data import PointPatterns, Subsets

Number = int | float | None  # as JSON has them: a whole number may come as int
Stats = Mapping[str, Number]

LEADING = ("repulsion", "regularity", "intensity", "expected_size", "range", "sigma")
MAX_R_HAT, MIN_ESS = 1.01, 400
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# Below these 5 % quantiles repulsion is not told from none (for the first: where in between, its prior says);
# with this 5 % quantile and median above the last two, the posterior piles up at the top of the scale.
WEAK_REPULSION, WEAK_REGULARITY, FULL_REPULSION = (0.05, 0.1), 0.025, (0.75, 0.9)


def verdict(fit: Any) -> str:
    """What the posterior says of repulsion: `none` (not distinguishable from none), `clear`, `full` or `unknown`."""
    repulsion, regularity = (_surest(fit.summary, name) for name in ("repulsion", "regularity"))
    if fit.model.name == "stationary":
        if repulsion is None:
            return "unknown"
        prior = _finite(fit.prior_draws.get("repulsion", ()))
        decile = np.quantile(prior, 0.1) if len(prior) else 0.0
        if repulsion < np.clip(decile, *WEAK_REPULSION):
            return "none"
        middle = components(fit.summary, "repulsion")[0][1].get("q50")
        is_full = repulsion > FULL_REPULSION[0] and middle is not None and middle > FULL_REPULSION[1]
        return "full" if is_full else "clear"
    # Items chosen independently have regularity above 0, and a given size has none. There repulsion is told
    # from none by whether the data moved sigma away from the low end of its prior.
    if regularity is not None and not isinstance(fit.model.data, Subsets):
        return "none" if regularity < WEAK_REGULARITY else "clear"
    sigmas = [(name, stats.get("q05")) for name, stats in components(fit.summary, "sigma")]
    if not sigmas:
        return "unknown"
    is_low = [
        low is not None and low <= np.quantile(_finite(fit.prior_draws[name]), 0.1)
        for name, low in sigmas
        if name in fit.prior_draws
    ]
    return "none" if is_low and all(is_low) else "clear"


def headline(fit: Any) -> str:
    """The verdict in one line, called preliminary while the chains have not converged."""
    is_items = isinstance(fit.model.data, Subsets)
    line = {
        "none": "Repulsion is not distinguishable from none",
        "full": "The points are as regular as this family allows, or more",
        "clear": "Similar items seldom appear together" if is_items else "The points repel each other",
        "unknown": "What the fit found",
    }[verdict(fit)]
    return f"Preliminary: {line[0].lower()}{line[1:]}" if fit.summary.get("converged") is False else line


def lead(fit: Any) -> list[str]:
    """The sentences under the headline."""
    found, is_items = verdict(fit), isinstance(fit.model.data, Subsets)
    sentences = [_repulsion_sentence(fit)]
    if found == "none" and is_items:
        sentences.append("Items chosen independently of each other would give this answer.")
    elif found == "none":
        sentences.append(
            "Points placed independently of each other would give this answer, and so would clustered points, which "
            "this family cannot describe."
        )
    elif found == "full":
        sentences.append(
            "The posterior piles up at the upper end: the points may be more regular than this family can describe."
        )
    if found in ("clear", "full") and components(fit.summary, "range"):
        reach = _estimate(fit, components(fit.summary, "range")[0][0], "range, 90 % interval ")
        sentences.append(f"Neighbours are noticeably rarer up to a distance of {reach}.")
    return [sentence for sentence in [*sentences, _size_sentence(fit)] if sentence]


def _repulsion_sentence(fit: Any) -> str:
    """Repulsion and what its scale means for this model; sigma where repulsion is not defined."""
    is_items, name = isinstance(fit.model.data, Subsets), fit.model.name
    repulsion, sigma = (_estimates(fit, key) for key in ("repulsion", "sigma"))
    if not repulsion:
        scale = "over a squared distance σ of" if is_items else "over a length σ of"
        return f"{'Items exclude' if is_items else 'Points repel'} each other {scale} {sigma}." if sigma else ""
    meaning = {
        "stationary": " on a scale from 0 (no interaction) to 1 (the strongest this family can have)",
        "uniform": ": how far it reaches, in units of the typical distance between points",
        "gaussian": ": how far it reaches, as a share of the width of the "
        + ("preferred region" if is_items else "whole cloud of points"),
    }
    return f"Repulsion is {repulsion}{meaning.get(name, '')}."


def _size_sentence(fit: Any) -> str:
    what = ("set", "items") if isinstance(fit.model.data, Subsets) else ("pattern", "points")
    if fit.model.size is not None:
        return f"Every {what[0]} has {fit.model.size} {what[1]}: the number is given, not learned."
    size = components(fit.summary, "expected_size")
    return f"A {what[0]} holds {_estimate(fit, size[0][0], '')} {what[1]} on average." if size else ""


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """The fit's own warnings, and one for each bad sign that they do not mention."""
    decisions = summary.get("decisions") or {}
    undecided, crossed = decisions.get("undecided"), decisions.get("crossed")
    signs = [
        (summary.get("converged") is False, "converge", "The chains have not converged: the numbers may still move. "
         "Run longer, with more draws and more tuning."),
        (undecided, "undecided", f"{undecided} decisions of the sampler stayed undecided: the result is not exact."),
        (crossed, "cross", f"{crossed} pairs of bounds crossed: round-off was larger than expected."),
    ]  # fmt: skip
    given = [str(warning) for warning in summary.get("warnings") or ()]
    said = " ".join(given).lower()
    return given + [sentence for is_bad, word, sentence in signs if is_bad and word not in said]


def in_words(name: str, model: Any) -> str:
    """What a quantity is, for someone who does not know the symbols."""
    is_items = isinstance(model.data, Subsets)
    what, group = ("items", "set") if is_items else ("points", "pattern")
    where = "preferred region" if is_items else "cloud of points"
    space = ("length", "area", "volume")[min(model.data.dim, 3) - 1] if not is_items else ""
    repulsion = {
        "stationary": "strength of the repulsion, from 0 (none) to 1 (the most possible)",
        "gaussian": f"reach of the repulsion as a share of the width of the {where}",
        "uniform": "reach of the repulsion as a share of the typical distance between points",
    }  # fmt: skip
    words = {
        "repulsion": repulsion.get(model.name, "strength of the repulsion"),
        "regularity": f"how steady the number of {what} is, from 0 (as by chance) to 1 (always the same)",
        "intensity": f"points per unit of {space}",
        "expected_size": f"{what} in a {group}, on average",
        "range": "distance up to which neighbours are noticeably rarer",
        "sigma": "scale of similarity, a squared distance" if is_items else "length over which points repel each other",
        "gamma": "width of the preferred region, a squared distance",
        "rho": "width of the cloud of points",
        "alpha": f"amplitude: the larger, the more {what}",
        "mu": "centre of the cloud of points",
    }.get(base_name(name), "")
    return words and words + along(name, model)


def along(name: str, model: Any) -> str:
    """` along x` for `sigma[0]`, by the items' column names where they have any; nothing for a scalar."""
    index = re.findall(r"\d+", name.partition("[")[2])
    columns = model.data.base.columns if isinstance(model.data, Subsets) else "xyz" if model.data.dim <= 3 else ()
    axes = [columns[int(i)] if int(i) < len(columns) else f"dimension {i}" for i in index]
    return f" along {' and '.join(axes)}" if axes else ""


def base_name(name: str) -> str:
    """`sigma` of `sigma[0]`."""
    return name.partition("[")[0]


def counted(data: PointPatterns | Subsets) -> str:
    """`31 patterns, 1242 points`."""
    what = ("set", "chosen item") if isinstance(data, Subsets) else ("pattern", "point")
    numbers = zip((len(data), int(data.counts.sum())), what, strict=True)
    return ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in numbers)


def data_lines(data: PointPatterns | Subsets) -> list[str]:
    """The data as a methods section describes them."""
    low, high = data.counts.min(), data.counts.max()
    each = f", {low} to {high} each" if low < high else f", {low} each"
    lines = [counted(data) + (each if len(data) > 1 else "")]
    if isinstance(data, Subsets):
        return [*lines, f"{len(data.base)} items with {data.base.dim} coordinates each"]
    if len(set(data.groups)) > 1:
        lines.append("groups: " + joined([f"{g} ({data.groups.count(g)})" for g in sorted(set(data.groups))]))
    windows = data.windows or ()
    sizes = {" × ".join(number(float(length)) for length in box.lengths) for box in windows}
    if len(sizes) == 1:
        (size,) = sizes
        lines.append(f"window {size}" if len(data) == 1 else f"windows all {size}")
    elif windows:
        volumes = [box.volume for box in windows]
        what = ("length", "area", "volume")[min(data.dim, 3) - 1]
        lines.append(f"windows of {what} {number(min(volumes))} to {number(max(volumes))}")
    else:
        lines.append(f"{data.dim} dimensions, no windows")
    return lines if data.unit in ("unit", "units") else [*lines, f"unit: {data.unit or 'not given'}"]


def prior_text(distribution: Any, digits: int = 4) -> str:
    """A NumPyro distribution as it is written on the command line: `LogNormal(-3.2, 1)`; a tuple has one each."""
    if isinstance(distribution, tuple):
        return "; ".join(prior_text(part, digits) for part in distribution)
    while hasattr(distribution, "base_dist") and not type(distribution).arg_constraints:
        distribution = distribution.base_dist
    values = [np.ravel(getattr(distribution, key)).astype(float) for key in type(distribution).arg_constraints]
    texts = [", ".join(f"{x:.{digits}g}" for x in (v[:1] if np.ptp(v) == 0 else v)) for v in values]
    return f"{type(distribution).__name__}({', '.join(f'[{t}]' if ',' in t else t for t in texts)})"


def table_text(summary: Mapping[str, Any]) -> str:
    """The quantities of a summary as lines of text, what matters most first."""
    units, rows = summary.get("units") or {}, [("", "median", "90 % interval", "unit", "R-hat", "ESS")]
    for name, stats in quantities(summary).items():
        ess = [e for e in (stats.get("ess_bulk"), stats.get("ess_tail")) if e is not None]
        r_hat = stats.get("r_hat")
        cells = (
            number(stats.get("q50"), spread(stats)),
            interval(stats),
            units.get(name) or "",
            "" if r_hat is None else f"{r_hat:.3f}",
            f"{min(ess):.0f}" if ess else "",
        )
        rows.append((name, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [
            cell.rjust(w) if i in (1, 4, 5) else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def number(value: Number, spread: Number = None) -> str:
    """A number with the one or two digits that its spread supports, or three significant ones; – for null."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = math.floor(math.log10(abs(value))) if value else 0
    decimals = 2 - size
    if spread and math.isfinite(spread):
        order = math.floor(math.log10(spread))
        decimals = (0 if spread >= 2 * 10.0**order else 1) - order
        decimals = min(max(decimals, -size), 5 - size)
    if value and not -4 <= size < 6:
        text = f"{value / 10.0**size:.{max(decimals + size, 0)}f}{_power(size)}"
    else:
        text = f"{round(value, decimals):.{max(decimals, 0)}f}"
        if not spread and "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def interval(stats: Stats, joint: str = "to") -> str:
    """The 90 % interval."""
    low, high = stats.get("q05"), stats.get("q95")
    if low is None or high is None:
        return "–"
    joint = "to" if min(low, high) < 0 else joint  # no dash beside a minus
    largest = max(abs(low), abs(high))
    size = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    if not -4 <= size < 6:  # one power of ten for both ends
        width = spread(stats)
        low_text, high_text = (number(end / 10.0**size, width and width / 10.0**size) for end in (low, high))
        return f"{low_text} {joint} {high_text}{_power(size)}"
    return f"{number(low, spread(stats))} {joint} {number(high, spread(stats))}"


def _power(size: int) -> str:
    return f" × 10{str(size).translate(SUPERSCRIPT)}"


def with_unit(text: str, unit: str | None) -> str:
    """A number and its unit; `× 0.1 metres` where the unit is a number, nothing where it only says "unit"."""
    if not unit or unit.split()[0] in ("unit", "units"):
        return text
    return f"{text} × {unit}" if unit[0].isdigit() else f"{text} {unit}"


def joined(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def spread(stats: Stats) -> Number:
    """The standard deviation that the 90 % interval would have were it a normal one: finite where moments are not."""
    low, high = stats.get("q05"), stats.get("q95")
    return stats.get("sd") if low is None or high is None else (high - low) / 3.29


def quantities(summary: Mapping[str, Any]) -> dict[str, Stats]:
    """Every quantity that exists, what matters most first; a derived one that is a parameter too comes once."""
    found = {**(summary.get("derived") or {}), **summary["parameters"]}
    found = {name: stats for name, stats in found.items() if stats is not None and stats.get("q50") is not None}
    rank = {name: i for i, name in enumerate(LEADING)}
    return dict(sorted(found.items(), key=lambda item: rank.get(base_name(item[0]), len(rank))))


def components(summary: Mapping[str, Any], base: str) -> list[tuple[str, Stats]]:
    """`sigma`, or `sigma[0]`, `sigma[1]`, …; empty where the quantity does not exist."""
    return [(name, stats) for name, stats in quantities(summary).items() if base_name(name) == base]


def _estimate(fit: Any, name: str, label: str = "90 % interval ") -> str:
    """`3.2 m (90 % interval 2.8 to 3.5)`."""
    stats = quantities(fit.summary)[name]
    unit = (fit.summary.get("units") or {}).get(name)
    return f"{with_unit(number(stats.get('q50'), spread(stats)), unit)} ({label}{interval(stats)})"


def _estimates(fit: Any, base: str) -> str:
    """The estimate of a scalar, or of each component: `0.2 (90 % interval 0.1 to 0.3) along x and …`."""
    names = [name for name, _ in components(fit.summary, base)]
    if len(names) == 1:
        return _estimate(fit, names[0])
    labels = ["90 % interval "] + [""] * len(names)
    return joined(
        [_estimate(fit, name, label) + along(name, fit.model) for name, label in zip(names, labels, strict=False)]
    )


def _surest(summary: Mapping[str, Any], base: str) -> Number:
    """The largest 5 % quantile over the dimensions: what is surely there in at least one of them."""
    lows = [stats["q05"] for _, stats in components(summary, base)]
    return max((low for low in lows if low is not None), default=None)


def _finite(values: Any) -> np.ndarray:
    values = np.asarray(values, dtype=float).ravel()
    return values[np.isfinite(values)]

"""The figures of a fit. Each function returns a matplotlib Figure of its own: no pyplot, no global state.

Figures are at most 4.8 inches wide, so that their text stays readable on a phone. Colours are Okabe and
Ito's, which colour-blind readers can tell apart; chains differ by colour and by line style.
"""

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
import xarray
from arviz_stats.base.array import array_stats
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import Box
from dpplearn.words import SUPERSCRIPT

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, LIGHT, PALE, INK = "#767676", "#b8b8b8", "#d9d9d9", "#222222"
CHAINS = [(color, style) for style in ("-", "--", ":") for color in (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)]
WIDTH, MAX_ITEMS_DRAWN, MAX_LAG = 4.8, 5000, 100
STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.dpi": 180,
    "savefig.dpi": "figure",
    "text.parse_math": False,
}

_P = ParamSpec("_P")


def _styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Draw in the style of this file whatever the user's own matplotlib settings are."""

    @functools.wraps(draw)
    def styled(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with matplotlib.style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return styled


def png(figure: Figure) -> bytes:
    """The figure as PNG: the same bytes for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.style.context(["default", STYLE]):
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


@_styled
def trace(posterior: xarray.Dataset, names: Sequence[str]) -> Figure:
    """One row per scalar quantity: the draws of all chains in order, and their density chain by chain."""
    figure = Figure(figsize=(WIDTH, 1.25 * len(names) + 0.3), layout="constrained")
    rows = figure.subplots(len(names), 2, squeeze=False, width_ratios=(3, 1.4))
    for (left, right), name in zip(rows, names, strict=True):
        for (color, style), chain in zip(_chain_styles(posterior), draws_of(posterior, name), strict=True):
            left.plot(chain, color=color, linestyle=style, linewidth=0.4, alpha=0.8)
            _plot_density(right, chain, color=color, linestyle=style, linewidth=1.2)
        left.set_title(_shortened(name, 40), family="monospace")
        left.margins(x=0.01)
        _linear_axis(left.yaxis, 3)
        right.set_yticks([])
        right.spines["left"].set_visible(False)
        _linear_axis(right.xaxis, 3)
        right.set_ylim(bottom=0)
    rows[-1, 0].set_xlabel("draw")
    rows[-1, 1].set_xlabel("value")
    return figure


@_styled
def autocorrelation(posterior: xarray.Dataset, names: Sequence[str]) -> Figure:
    """How long the draws of each chain remember where they were; the band is what independent draws would show."""
    figure, panels = _grid(len(names), columns=2, height=1.3)
    for axes, name in zip(panels, names, strict=True):
        draws = draws_of(posterior, name)
        lags = min(MAX_LAG, max(1, draws.shape[1] // 2))
        band = 1.96 / np.sqrt(draws.shape[1])
        axes.axhspan(-band, band, color=PALE, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.6)
        for (color, style), chain in zip(_chain_styles(posterior), draws, strict=True):
            if np.ptp(chain) > 0:
                axes.plot(array_stats.autocorr(chain)[: lags + 1], color=color, linestyle=style, linewidth=1)
        axes.set(xlim=(0, lags), ylim=(-0.3, 1.02), yticks=(0, 0.5, 1))
        axes.set_title(_shortened(name, 30), family="monospace")
    figure.supxlabel("lag (draws)", fontsize=STYLE["font.size"])
    return figure


@_styled
def prior_posterior(
    posterior: xarray.Dataset,
    prior_draws: Mapping[str, Float[np.ndarray, " S"]],
    names: Sequence[str],
    units: Mapping[str, str | None],
) -> Figure:
    """What the data taught: posterior density over prior density, with the posterior median and 90 % interval."""
    figure, panels = _grid(len(names), columns=2, height=1.55, extra=0.35)
    for axes, name in zip(panels, names, strict=True):
        draws = _finite(draws_of(posterior, name))
        prior = _finite(np.asarray(prior_draws.get(name, ())))
        axes.set_title(_shortened(name, 30), family="monospace")
        axes.set_xlabel(_shortened(units.get(name) or "", 30), fontsize=8.5, color=GREY)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        if len(draws) == 0:
            axes.text(0.5, 0.5, "no finite draws", transform=axes.transAxes, ha="center")
            continue
        is_log = _is_skewed(draws, prior)
        lower, upper = _view(draws, prior, is_log)
        _plot_density(axes, prior, (lower, upper), is_log, color=GREY, linestyle="--", linewidth=1.2)
        _plot_density(axes, draws, (lower, upper), is_log, color=BLUE, linewidth=1.4, is_filled=True)
        low, median, high = np.quantile(draws, (0.05, 0.5, 0.95))
        top = axes.get_ylim()[1]
        axes.plot([low, high], [-0.07 * top] * 2, color=INK, linewidth=2, solid_capstyle="butt")
        axes.plot(median, -0.07 * top, "o", color=INK, markersize=4.5)
        axes.set(xlim=(lower, upper), ylim=(-0.15 * top, top))
        if is_log:
            _log_axis(axes, lower, upper)
        else:
            _linear_axis(axes.xaxis, 4)
    key = [
        Line2D([], [], color=GREY, linestyle="--", linewidth=1.2, label="prior"),
        Patch(facecolor=BLUE, alpha=0.35, label="posterior"),
        Line2D([], [], color=INK, linewidth=2, marker="o", markersize=4.5, label="median, 90 % interval"),
    ]
    figure.legend(handles=key, loc="outside upper left", ncols=3)
    return figure


@_styled
def data(data: PointPatterns | Subsets, max_panels: int = 12) -> Figure:
    """The observed patterns in their windows, or the observed subsets among the items."""
    if isinstance(data, Subsets):
        return _subsets(data, min(max_panels, 6)) if data.base.dim == 2 else _set_sizes(data)
    if data.dim == 1:
        return _lines(data, max_panels)
    return _patterns(data, max_panels)


@_styled
def moments(moments: Mapping[str, Any]) -> Figure:
    """What the fitted model predicts for simple statistics of a set, and what was observed."""
    names, has_errors = moments["names"], False
    figure, panels = _grid(len(names), columns=2, height=1.6, extra=0.35)
    for axes, name in zip(panels, names, strict=True):
        predicted = _finite(np.asarray(moments[name]["predicted"], dtype=float))
        observed, error = moments[name]["observed"], moments[name].get("observed_se")
        if len(predicted):
            axes.hist(predicted, bins=30 if np.ptp(predicted) > 0 else 1, color=SKY, edgecolor="white", linewidth=0.2)
        if error is not None and np.isfinite(error):
            axes.axvspan(observed - 2 * error, observed + 2 * error, color=VERMILION, alpha=0.15, linewidth=0)
            has_errors = True
        axes.axvline(observed, color=VERMILION, linewidth=1.8)
        axes.set_title(name)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        _linear_axis(axes.xaxis, 4)
    key = [
        Patch(facecolor=SKY, label="predicted, draw by draw"),
        Line2D([], [], color=VERMILION, linewidth=1.8, label="observed"),
        Patch(facecolor=VERMILION, alpha=0.15, label="± 2 standard errors"),
    ]
    figure.legend(handles=key[: 3 if has_errors else 2], loc="outside upper left", ncols=3)
    return figure


def draws_of(posterior: xarray.Dataset, name: str) -> Float[np.ndarray, "chains draws"]:
    """The draws of one scalar by its flat name: `sigma`, `sigma[0]` or `sigma[0,1]`."""
    found = re.fullmatch(r"(.+)\[([\d,]+)\]", name)
    if name in posterior or found is None:
        return posterior[name].transpose("chain", "draw").to_numpy()
    where = tuple(int(i) for i in found[2].split(","))
    return posterior[found[1]].transpose("chain", "draw", ...).to_numpy()[(slice(None), slice(None), *where)]


# Densities and axes


def _chain_styles(posterior: xarray.Dataset) -> list[tuple[str, str]]:
    return [CHAINS[i % len(CHAINS)] for i in range(posterior.sizes["chain"])]


def _finite(values: np.ndarray) -> Float[np.ndarray, " n"]:
    values = np.asarray(values, dtype=float).ravel()
    return values[np.isfinite(values)]


def _plot_density(
    axes: Axes,
    values: np.ndarray,
    view: tuple[float, float] = (-np.inf, np.inf),
    is_log: bool = False,
    is_filled: bool = False,
    **line: Any,
) -> None:
    """The kernel density of what falls inside the view, weighted by its share; per decade on a log axis."""
    values = _finite(values)
    inside = values[(values >= view[0]) & (values <= view[1])]
    if len(inside) < 2 or np.ptp(inside) == 0:
        for value in inside[:1]:
            axes.axvline(value, **line)
        return
    with np.errstate(all="ignore"):  # the bandwidth search divides by zero on equally spaced values, and recovers
        grid, density, _ = array_stats.kde(np.log10(inside) if is_log else inside)
    grid = 10**grid if is_log else grid
    density = density * len(inside) / len(values)
    if is_filled:
        axes.fill_between(grid, density, color=line["color"], alpha=0.35, linewidth=0)
    axes.plot(np.r_[grid[0], grid, grid[-1]], np.r_[0, density, 0], **line)


def _is_skewed(draws: np.ndarray, prior: np.ndarray) -> bool:
    """Whether a log axis helps: all positive, spread over a factor of ten, and more symmetric in the logarithm."""
    if draws.min() <= 0 or (len(prior) and prior.min() <= 0):
        return False
    low, middle, high = np.quantile(prior if len(prior) else draws, (0.05, 0.5, 0.95))
    if high <= 10 * low or high > 1e6 * low:
        return bool(high > 10 * low)
    share, log_share = (middle - low) / (high - low), np.log(middle / low) / np.log(high / low)
    return bool(abs(log_share - 0.5) < abs(share - 0.5))


def _view(draws: np.ndarray, prior: np.ndarray, is_log: bool) -> tuple[float, float]:
    """All of the posterior, and of the prior what lies within twelve posterior widths."""
    draws, prior = (np.log10(draws), np.log10(prior)) if is_log else (draws, prior)
    lower, upper = np.quantile(draws, (0.001, 0.999))
    width = np.subtract(*np.quantile(draws, (0.95, 0.05))) or abs(lower) or 1.0
    if len(prior):
        low, high = np.quantile(prior, (0.005, 0.995))
        lower, upper = min(lower, max(low, lower - 12 * width)), max(upper, min(high, upper + 12 * width))
    pad = 0.03 * (upper - lower) or 0.1 * width
    lower, upper = lower - pad, upper + pad
    return (10**lower, 10**upper) if is_log else (lower, upper)


def _linear_axis(axis: Axis, bins: int) -> None:
    """Few labels, short ones: what is very small or large shows its power of ten once, at the end."""
    axis.set_major_locator(MaxNLocator(bins))
    formatter = _PowerAtTheEnd(useMathText=False)
    formatter.set_powerlimits((-2, 4))
    axis.set_major_formatter(formatter)


class _PowerAtTheEnd(ScalarFormatter):
    def get_offset(self) -> str:
        text = super().get_offset().replace("−", "-")
        return f"× 10{text[2:].translate(SUPERSCRIPT)}" if text.startswith("1e") else text


def _log_axis(axes: Axes, lower: float, upper: float) -> None:
    """A log axis with few labels, also where it spans less than a decade."""
    axes.set_xscale("log")
    decades = np.log10(upper / lower)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 3 else (1.0,), numticks=6))
    axes.xaxis.set_major_formatter(lambda value, _: _short_number(value))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short_number(value: float) -> str:
    """0.01, 0.1, 1, … 1000 as they are; powers of ten beyond."""
    return (
        f"{value:g}"
        if 1e-4 < abs(value) < 1e4 or value == 0
        else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    )


def _grid(panels: int, columns: int, height: float, extra: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, row by row; panels of an unfinished last row are left out."""
    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH, height * rows + extra + 0.2), layout="constrained")
    grid = figure.add_gridspec(rows, columns, wspace=0.12)
    return figure, [figure.add_subplot(grid[divmod(i, columns)]) for i in range(panels)]


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


# Patterns and subsets


def _chosen_panels(total: int, most: int) -> list[int]:
    """Which patterns are drawn: evenly spread over the file, so that no group is left out by its place."""
    return sorted({int(i) for i in np.linspace(0, total - 1, min(total, most)).round()})


def _note(figure: Figure, text: str) -> None:
    """A grey note under the panels, with room of its own."""
    if text:
        figure.set_figheight(figure.get_figheight() + 0.17 * (text.count("\n") + 1))
        figure.supxlabel(text, fontsize=8.5, color=GREY, x=0.01, ha="left")


def _patterns(data: PointPatterns, max_panels: int) -> Figure:
    """Patterns of two or more dimensions, each in its window with equal aspect."""
    shown = _chosen_panels(len(data), max_panels)
    columns = {1: 1, 2: 2, 4: 2}.get(len(shown), 3)
    windows = [_drawn_window(data, t) for t in shown]
    is_shared = len(set(windows)) == 1
    width = 4.2 if columns == 1 else WIDTH
    rows = -(-len(shown) // columns)
    shape = float(np.median([box.lengths[1] / box.lengths[0] for box in windows]))
    panel = min(max(shape * (width - 0.5) / columns, 0.4), 2 * width / columns)
    figure = Figure(figsize=(width, rows * (panel + (0.42 if is_shared else 0.6)) + 0.3), layout="compressed")
    size = float(np.clip(1600 / columns / max(int(data.counts[shown].max()), 1), 3, 30))
    for i, (t, box) in enumerate(zip(shown, windows, strict=True)):
        axes = figure.add_subplot(rows, columns, i + 1)
        x, y = data.points[t, data.mask[t]][:, :2].T
        axes.scatter(x, y, s=size, color=BLUE, edgecolor="white", linewidth=0.3, zorder=3, clip_on=False)
        _draw_window(axes, box, is_framed=data.windows is not None)
        axes.set_title(f"{_shortened(data.names[t], 56 // columns)}\nn = {len(x)}", fontsize=8.5)
        if is_shared and columns > 1:
            axes.tick_params(labelleft=i % columns == 0, labelbottom=i + columns >= len(shown))
    lines = [f"{data.dim}-D patterns seen from above: only x and y are drawn"] if data.dim > 2 else []
    if data.unit and data.unit != "unit":
        lines.append(f"unit: {_shortened(data.unit, 40)}")
    if len(shown) < len(data):
        lines.append(f"{len(shown)} of {len(data)} patterns shown, evenly spread over the file")
    _note(figure, "\n".join(lines))
    return figure


def _drawn_window(data: PointPatterns, t: int) -> Box:
    """The first two dimensions of a pattern's window, or of the box around all points where none is known."""
    if data.windows is not None:
        return Box(data.windows[t].lower[:2], data.windows[t].upper[:2])
    points = data.points[data.mask][:, :2] if data.mask.any() else np.zeros((1, 2))
    pad = 0.05 * max(float(np.ptp(points, axis=0).max()), 1e-12)
    return Box((points.min(axis=0) - pad).tolist(), (points.max(axis=0) + pad).tolist())


def _draw_window(axes: Axes, box: Box, is_framed: bool) -> None:
    """Equal aspect, ticks at the ends of the window, and its frame where it is known."""
    (x0, y0), (x1, y1) = box.lower, box.upper
    if is_framed:
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=GREY, linewidth=0.8, clip_on=False))
    axes.spines[:].set_visible(not is_framed)
    axes.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal")
    axes.set_xticks([x0, x1], [f"{x0:.6g}", f"{x1:.6g}"])
    axes.set_yticks([y0, y1], [f"{y0:.6g}", f"{y1:.6g}"])
    axes.tick_params(length=2.5, color=GREY)


def _lines(data: PointPatterns, max_panels: int) -> Figure:
    """Patterns on a line: a row of ticks each."""
    shown = _chosen_panels(len(data), max_panels)
    figure = Figure(figsize=(WIDTH, 0.42 * len(shown) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    for row, t in enumerate(shown):
        points = data.points[t, data.mask[t], 0]
        axes.vlines(points, row - 0.28, row + 0.28, color=BLUE, linewidth=1.2)
        if data.windows is not None:
            axes.plot([data.windows[t].lower[0], data.windows[t].upper[0]], [row, row], color=GREY, linewidth=0.8)
    labels = [f"{_shortened(data.names[t], 22)}  n = {data.counts[t]}" for t in shown]
    axes.set_yticks(range(len(shown)), labels)
    axes.set(ylim=(len(shown) - 0.4, -0.6), xlabel=f"x ({_shortened(data.unit, 24)})" if data.unit else "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(shown) < len(data):
        _note(figure, f"{len(shown)} of {len(data)} patterns shown, evenly spread over the file")
    return figure


def _subsets(data: Subsets, max_panels: int) -> Figure:
    """The first sets among two-dimensional items: all items grey, the chosen ones coloured."""
    shown = range(min(len(data), max_panels))
    columns = min(len(shown), 3)
    width = 4.2 if columns == 1 else WIDTH
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(width, rows * ((width - 0.3) / columns + 0.35) + 0.2), layout="compressed")
    items = data.items
    if len(items) > MAX_ITEMS_DRAWN:
        items = items[np.sort(np.random.default_rng(0).choice(len(items), MAX_ITEMS_DRAWN, replace=False))]
    extent = np.maximum(np.ptp(items, axis=0), 1e-12)
    small = float(np.clip(1500 / columns**2 / len(items), 0.5, 14))
    for i in shown:
        axes = figure.add_subplot(rows, columns, i + 1)
        chosen = data.items[data.index[i, data.mask[i]]]
        axes.scatter(items[:, 0], items[:, 1], s=small, color=LIGHT, linewidth=0)
        axes.scatter(chosen[:, 0], chosen[:, 1], s=max(48 / columns, 3 * small), color=VERMILION, linewidth=0)
        axes.set_title(f"{_shortened('set ' + data.names[i], 56 // columns)}\nn = {len(chosen)}", fontsize=8.5)
        axes.set(xticks=[], yticks=[], aspect="equal" if max(extent) < 4 * min(extent) else "auto")
        axes.margins(0.06)
        axes.spines[:].set(visible=True, color=LIGHT)
    across, up = data.base.columns if len(data.base.columns) == 2 else ("column 0", "column 1")
    lines = [f"grey: the {len(data.base)} items, coloured: the chosen ones"]
    lines.append(f"horizontal {_shortened(across, 20)}, vertical {_shortened(up, 20)}")
    if len(shown) < len(data):
        lines.append(f"the first {len(shown)} of {len(data)} sets shown")
    _note(figure, "\n".join(lines))
    return figure


def _set_sizes(data: Subsets) -> Figure:
    """How many sets have how many items."""
    figure = Figure(figsize=(4.2, 2.4), layout="constrained")
    axes = figure.add_subplot()
    sizes, sets = np.unique(data.counts, return_counts=True)
    axes.bar(sizes, sets, color=BLUE, width=0.85)
    axes.set(xlabel="items in a set", ylabel="sets", xlim=(sizes.min() - 1.5, sizes.max() + 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure

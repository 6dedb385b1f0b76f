"""A fit as one self-contained HTML page: the answer in words first, then the numbers, the pictures and the details.

Plain text from `dpplearn.words` and from the user is escaped where it enters the page.
"""

import base64
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np

from dpplearn import words
from dpplearn.data import PointPatterns, Subsets
from dpplearn.words import number

FORMULAS = {  # (model, is on items): in words, in symbols
    ("stationary", False): (
        "A stationary Gaussian determinantal point process seen through its window: the same everywhere, and it "
        "goes on outside the window. A pair at distance r is 1 − exp(−r²/σ²) times as frequent as by chance.",
        "<i>K</i>(x, y) = λ exp(−‖x − y‖² / 2σ²), with intensity λ and "
        "repulsion <i>u</i> = λ (2πσ²)<sup><i>D</i>/2</sup> ≤ 1",
    ),
    ("gaussian", False): (
        "A determinantal point process on the whole space: points gather around a centre μ over the width ρ, "
        "and repel each other over the length σ.",
        "<i>L</i>(x, y) = <i>q</i>(x) <i>k</i>(x, y) <i>q</i>(y), "
        "<i>q</i>(x)² = α ∏ exp(−(x<sub>d</sub> − μ<sub>d</sub>)² / ρ<sub>d</sub>²) / (√π ρ<sub>d</sub>), "
        "<i>k</i>(x, y) = ∏ exp(−(x<sub>d</sub> − y<sub>d</sub>)² / 2σ<sub>d</sub>²)",
    ),
    ("gaussian", True): (
        "A determinantal point process on the items: items near the origin are preferred (within √γ), "
        "and items closer than about √σ seldom appear together.",
        "<i>L<sub>ij</sub></i> = <i>q<sub>i</sub> k<sub>ij</sub> q<sub>j</sub></i>, "
        "<i>q<sub>i</sub></i>² = α exp(−∑ x<sub>d</sub>² / γ<sub>d</sub>), "
        "<i>k<sub>ij</sub></i> = exp(−½ ∑ (x<sub>d</sub> − y<sub>d</sub>)² / σ<sub>d</sub>)",
    ),
    ("uniform", False): (
        "A determinantal point process that lives on the window alone: no place is preferred, "
        "and points repel each other over the length σ.",
        "<i>L</i>(x, y) = α ∏ exp(−(x<sub>d</sub> − y<sub>d</sub>)² / 2σ<sub>d</sub>²)",
    ),
    ("uniform", True): (
        "A determinantal point process on the items: no item is preferred, "
        "and items closer than about √σ seldom appear together.",
        "<i>L<sub>ij</sub></i> = α exp(−½ ∑ (x<sub>d</sub> − y<sub>d</sub>)² / σ<sub>d</sub>)",
    ),
}
SAMPLERS = {
    "slice": "slice sampling along the directions in which the parameters vary together",
    "axes": "slice sampling, one parameter at a time",
    "random-direction": "slice sampling along random directions",
    "hyperrectangle": "slice sampling in a hyperrectangle",
    "metropolis": "Metropolis random walk",
}
PACKAGES = ("dpplearn", "jax", "numpyro", "numpy")


def fit_report(fit: Any) -> str:
    """The whole page: needs the fit's `summary`, `posterior`, `model`, `prior_draws` and `moments` (or None)."""
    from dpplearn import plots  # matplotlib is slow to import and only needed here

    data, names = fit.model.data, list(fit.summary["parameters"])
    kind = "set" if isinstance(data, Subsets) else "pattern"
    sections = [
        _header(fit),
        _section("The numbers", _table(fit)),
        _section(f"The {kind}{'' if len(data) == 1 else 's'}", _figure(plots.data(data), _data_alt(data))),
    ]
    learned = [name for name in names if name in fit.prior_draws]
    if learned:
        figure = plots.prior_posterior(fit.posterior, fit.prior_draws, learned, fit.summary.get("units") or {})
        alt = "Densities of prior and posterior of " + words.joined(learned)
        sections.append(_section("What the data taught: prior against posterior", _figure(figure, alt)))
    if fit.moments is not None:
        alt = "Predicted and observed " + words.joined(fit.moments["names"])
        picture = _figure(plots.moments(fit.moments), alt)
        sections.append(
            _section(
                "Does the model match the data?", _moments(fit.moments, isinstance(fit.model.data, Subsets)) + picture
            )
        )
    sections.append(_section("What was fitted", _fitted(fit)))
    if names:
        trace, memory = plots.trace(fit.posterior, names), plots.autocorrelation(fit.posterior, names)
        traces = _folded("Traces", _figure(trace, "Trace and density by chain of " + words.joined(names)))
        memories = _folded("Autocorrelation", _figure(memory, "Autocorrelation of " + words.joined(names)))
        sections.append(_section("The chains", traces + memories))
    sections += [_section("How to read this", _reading(fit)), _section("How to cite", _citation(fit))]
    return PAGE.format(title=escape(words.headline(fit)), style=STYLE, body="\n".join(sections))


def _header(fit: Any) -> str:
    """Warnings where there are any, the answer, and its picture on the scale from 0 to 1."""
    summary, found = fit.summary, words.warnings(fit.summary)
    lines = "".join(f"<li>{escape(line)}</li>" for line in found)
    box = f'<aside class="warning"><h2>Before you use these numbers</h2><ul>{lines}</ul></aside>' if found else ""
    state = {True: "chains converged", False: "chains not converged"}.get(summary.get("converged"), "")
    exact = {True: "exact", False: "not exact"}.get(summary.get("is_exact"), "")
    eyebrow = [f"{summary['model']} model", words.counted(fit.model.data), exact, state]
    return (
        f'<header><p class="eyebrow">{escape(" · ".join(filter(None, eyebrow)))}</p>{box}'
        f"<h1>{escape(words.headline(fit))}</h1>"
        f'<p class="lead">{escape(" ".join(words.lead(fit)))}</p>{_gauge(fit)}</header>'
    )


def _gauge(fit: Any) -> str:
    """The scale from 0 to 1 with the 90 % interval and the median, for models that have such a scale."""
    name = "repulsion" if fit.model.name == "stationary" else "regularity"
    stats = words.quantities(fit.summary).get(name)
    if stats is None or isinstance(fit.model.data, Subsets) or stats.get("q05") is None or stats.get("q95") is None:
        return ""
    low, middle, high = (100 * min(max(float(stats[key] or 0), 0.0), 1.0) for key in ("q05", "q50", "q95"))
    ends = ("0 none", "1 strongest") if name == "repulsion" else ("0 as by chance", "1 always the same number")
    label = f"{name} on a scale from 0 to 1: 90 % interval {words.interval(stats)}"
    return (
        f'<figure class="gauge" role="img" aria-label="{label}"><div class="scale">'
        f'<i style="left:{low:.1f}%;width:{max(high - low, 0.8):.1f}%"></i><b style="left:{middle:.1f}%"></b></div>'
        f"<figcaption><span>{ends[0]}</span><span>{name}, 90 % interval</span><span>{ends[1]}</span>"
        "</figcaption></figure>"
    )


def _table(fit: Any) -> str:
    """All quantities; what did not mix is marked, and by more than a colour."""
    rows, units = {}, fit.summary.get("units") or {}
    for name, stats in words.quantities(fit.summary).items():
        spread, sd, r_hat = words.spread(stats), stats.get("sd"), stats.get("r_hat")
        ess = [value for value in (stats.get("ess_bulk"), stats.get("ess_tail")) if value is not None]
        is_bad = r_hat is not None and not r_hat <= words.MAX_R_HAT, bool(ess) and not min(ess) >= words.MIN_ESS
        head = f"<code>{escape(name)}</code><small>{escape(words.in_words(name, fit.model))}</small>"
        rows[head] = {
            "median": number(stats.get("q50"), spread),
            "mean": number(stats.get("mean"), spread),
            "sd": number(sd, sd and sd / 5),
            "90 % interval": words.interval(stats, "–"),
            "unit": _unit(units.get(name)),
            "R-hat": ("–" if r_hat is None else f"{r_hat:.3f}") + " ⚠" * is_bad[0],
            "ESS": (f"{min(ess):.0f}" if ess else "–") + " ⚠" * is_bad[1],
        }
    return _html_table("quantity", rows, "All quantities with posterior median, mean, sd and 90 % interval")


def _unit(unit: str | None) -> str:
    """Unbroken, and as a factor where it begins with a number."""
    unit = unit or "–"
    return f"{'× ' * (unit[0].isdigit() and not unit.startswith('1/'))}{unit}".replace(" ", "\u00a0")


def _moments(moments: Mapping[str, Any], is_items: bool) -> str:
    """What the statistics are, and a row for each."""
    rows, errors = {}, [moments[name].get("observed_se") for name in moments["names"]]
    has_errors = any(error is not None and np.isfinite(error) for error in errors)
    for name in moments["names"]:
        draws = np.asarray(moments[name]["predicted"], dtype=float)
        low, middle, high = map(float, np.quantile(draws, (0.05, 0.5, 0.95)))
        stats, error = {"q05": low, "q95": high}, moments[name].get("observed_se")
        rows[escape(name)] = {
            "observed": number(moments[name]["observed"], error or words.spread(stats)),
            **({"standard error": number(error, error and error / 5)} if has_errors else {}),
            "predicted": number(middle, words.spread(stats)),
            "90 % interval": words.interval(stats, "–"),
        }
    members, of = ("items", "set") if is_items else ("points", "pattern")
    reading = (
        "An observed value far outside the predictions and its own band is a feature the model misses."
        if has_errors
        else f"The predictions are means over many {of}s; a single {of} scatters around them."
    )
    what = (
        f"E|A| is the mean number of {members} in a {of}, E Σx² the mean of the sum of their squared coordinates, "
        f"measured from the centre. {reading}"
    )
    return f"<p>{what}</p>" + _html_table("statistic", rows, "Observed statistics of a set beside predicted ones")


def _html_table(first: str, rows: Mapping[str, Mapping[str, str]], caption: str) -> str:
    """Rows by their head (HTML) and cells (text) by their column; empty cells are marked for narrow screens."""
    columns = [first, *next(iter(rows.values()), {})]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)

    def cell(column: str, text: str) -> str:
        return f'<td data-label="{column}"{" class=none" if text == "–" else ""}>{escape(text)}</td>'

    body = "".join(
        f'<tr><th scope="row">{key}</th>{"".join(cell(*item) for item in cells.items())}</tr>'
        for key, cells in rows.items()
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _data_alt(data: PointPatterns | Subsets) -> str:
    if isinstance(data, Subsets):
        return f"{words.counted(data)}, from {len(data.base)} items"
    return f"{words.counted(data)}, drawn in {'their windows' if data.windows else 'a box around all points'}"


def _fitted(fit: Any) -> str:
    """Model, data, priors, sampler and software, for a methods section."""
    summary, model, sizes = fit.summary, fit.model, fit.posterior.sizes
    own = ("A determinantal point process with a kernel of your own.", "P(A) ∝ det <i>L<sub>A</sub></i>")
    meaning, symbols = FORMULAS.get((model.name, isinstance(model.data, Subsets)), own)
    size = f" Every set has {model.size} members." if model.size is not None else ""
    exact = {True: "yes", False: "no"}.get(summary.get("is_exact"), "–")
    reason = summary.get("normalizer_reason") or summary.get("normalizer") or "–"
    counts = {**(summary.get("decisions") or {}), "lost_digits": summary.get("lost_digits")}
    timing = summary.get("timing") or {}
    times = [
        (text, timing.get(key)) for text, key in (("compile", "compile_s"), ("tune", "tune_s"), ("draw", "draw_s"))
    ]
    sampler = summary.get("sampler") or ""
    rows = {
        "Model": f'{meaning}{size}<br><span class="formula">{symbols}</span>',
        "Data": _lines(words.data_lines(model.data)),
        "Priors": "<br>".join(_prior_line(fit, name) for name in model.priors),
        "Sampler": _lines([f"{sampler}: {SAMPLERS.get(sampler, 'as given')}",
                           f"{sizes['chain']} chains of {sizes['draw']} draws, seed {summary.get('seed')}"]),
        "Exact": _lines([exact, f"normalising constant {reason}"]),
        "Decisions": _lines([", ".join(f"{key.replace('_', ' ')} {_count(n)}" for key, n in counts.items())]),
        "Time": _lines([", ".join(f"{text} {'–' if s is None else f'{s:.1f} s'}" for text, s in times)]),
        "Software": _lines([", ".join([*map(_version, PACKAGES), f"Python {platform.python_version()}"])]),
    }  # fmt: skip
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in rows.items()) + "</dl>"


def _lines(lines: Iterable[str]) -> str:
    return "<br>".join(map(escape, lines))


def _count(value: words.Number) -> str:
    return f"{value:.0f}" if value is not None and float(value).is_integer() else number(value)


def _prior_line(fit: Any, name: str) -> str:
    """The prior as text and what it says in numbers."""
    said = []
    for key, draws in fit.prior_draws.items():
        finite = np.asarray(draws)[np.isfinite(draws)]
        if words.base_name(key) == name and len(finite):
            low, high = (float(q) for q in np.quantile(finite, (0.05, 0.95)))
            said.append(f"{number(low)} to {number(high)}{words.along(key, fit.model)}")
    ranges = f" <small>90 % from {escape(words.joined(said))}</small>" if said else ""
    return f"<code>{escape(name)} ~ {escape(words.prior_text(fit.model.priors[name]))}</code>{ranges}"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def _reading(fit: Any) -> str:
    """The few words of the page that need a definition; those that are not on it are left out."""
    known = {words.base_name(name) for name in words.quantities(fit.summary)}
    is_items = isinstance(fit.model.data, Subsets)
    chance = "independent choices already give more than 0" if is_items else "0 for points placed at random"
    entries = {
        "repulsion": REPULSION.get(fit.model.name),
        "regularity": f"1 − variance / mean of the number of members of a set: {chance}, 1 when it never varies.",
        "range": "Where the pair correlation reaches 0.95: closer pairs are at least 5 % rarer than by chance.",
    }
    general = {
        "90 % interval": "Given data, model and prior, the quantity lies inside with probability 0.9.",
        "prior, posterior": "Where both curves agree the data said nothing about that quantity.",
        "R-hat, ESS": f"R-hat compares the chains and should be at most {words.MAX_R_HAT}. ESS is the number of "
        "independent draws the chains are worth (the smaller of bulk and tail) and should be at least "
        f"{words.MIN_ESS}. ⚠ marks what fails.",
        "repulsion only": "Members of a determinantal point process avoid each other or ignore each other. It cannot "
        "describe clustering.",
    }
    shown = {**{key: text for key, text in entries.items() if key in known and text}, **general}
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{escape(text)}</dd>" for key, text in shown.items()) + "</dl>"


def _citation(fit: Any) -> str:
    software = f"The software: {_version('dpplearn')}, {fit.model.name} model."
    works = [*WORKS[: 2 if fit.model.name == "stationary" else 1], software]
    return "<ul>" + "".join(f"<li>{escape(work)}</li>" for work in works) + "</ul>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>"


def _figure(figure: Any, alt: str) -> str:
    """A figure as an image inside the page, no wider than its text asks for."""
    from dpplearn import plots

    image = base64.b64encode(plots.png(figure)).decode()
    width = round(figure.get_figwidth() * 120)
    return f'<figure><img style="max-width:{width}px" alt="{escape(alt)}" src="data:image/png;base64,{image}"></figure>'


REPULSION = {
    "stationary": "The share of the strongest repulsion that this family allows at this intensity. It has no unit "
    "and stays the same when the map is enlarged.",
    "gaussian": "The ratio of two lengths, how far repulsion reaches over how far the whole set spreads. It has no "
    "unit and stays the same when the coordinates are rescaled.",
    "uniform": "σ times intensity to the power 1/D: how far repulsion reaches, in units of the typical distance "
    "between points. It has no unit.",
}
WORKS = (
    "Affandi, R. H., Fox, E. B., Adams, R. P. and Taskar, B. (2014). Learning the parameters of determinantal point "
    "process kernels. Proceedings of the 31st International Conference on Machine Learning, 1224–1232.",
    "Lavancier, F., Møller, J. and Rubak, E. (2015). Determinantal point process models and statistical inference. "
    "Journal of the Royal Statistical Society B 77, 853–877.",
)

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d5dae0; --paper: #ffffff; --accent: #0072b2;
  --warn-ink: #5c2500; --warn-paper: #fff1e5; --warn-line: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a3adb8; --line: #3b434c; --paper: #14181d;
  --accent: #62b8ec; --warn-ink: #ffd9bd; --warn-paper: #38200f; --warn-line: #e8873f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(1.7rem, 5.5vw, 2.4rem); line-height: 1.15; margin: 0 0 .8rem; text-wrap: balance; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .8rem; }
.eyebrow { color: var(--soft); font-size: .9rem; margin: 0 0 1rem; }
.lead { font-size: 1.15rem; max-width: 42rem; margin: 0 0 1.6rem; }
.warning { background: var(--warn-paper); color: var(--warn-ink); border-left: .3rem solid var(--warn-line);
  padding: .8rem 1.1rem; margin: 0 0 1.8rem; }
.warning h2 { font-size: 1rem; margin: 0 0 .3rem; }
.warning ul { margin: 0; padding-left: 1.1rem; }
.gauge { max-width: 34rem; margin: 0; }
.scale { position: relative; height: .9rem; border-radius: .45rem; background: var(--line); }
.scale i { position: absolute; top: 0; bottom: 0; background: var(--accent); opacity: .55; border-radius: .45rem; }
.scale b { position: absolute; top: -.25rem; bottom: -.25rem; width: .25rem; margin-left: -.125rem;
  background: var(--ink); }
.gauge figcaption { display: flex; justify-content: space-between; gap: 1rem; color: var(--soft); font-size: .85rem;
  padding-top: .45rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .5rem .55rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
td, thead th { white-space: nowrap; }
th[scope="row"] { min-width: 9.5rem; }
th:first-child { text-align: left; padding-left: 0; }
section { overflow-x: auto; }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; }
th small { display: block; font-weight: 400; color: var(--soft); line-height: 1.35; max-width: 17rem; }
code { font: .93em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
th code { font-weight: 600; }
figure { margin: 0 0 1rem; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
@media (prefers-color-scheme: dark) { img { padding: .4rem; filter: brightness(.93); } }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .55rem 1.2rem; margin: 0; }
dt { font-weight: 600; max-width: 10rem; }
dd { margin: 0; min-width: 0; }
dd small { color: var(--soft); }
.formula { font-family: Georgia, "Times New Roman", serif; font-size: 1.02rem; }
summary { cursor: pointer; padding: .4rem 0; font-weight: 600; }
li { margin: .25rem 0; }
@media (max-width: 44rem) {
  body { padding-top: 1.5rem; }
  thead { display: none; }
  tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.6rem; padding: .7rem 0;
    border-bottom: 1px solid var(--line); }
  td.none { display: none; }
  tr th { grid-column: 1 / -1; padding: 0 0 .35rem; border: 0; }
  th small { max-width: none; }
  td { display: flex; justify-content: space-between; gap: .8rem; padding: .12rem 0; border: 0; }
  td::before { content: attr(data-label); color: var(--soft); }
  tr th, td[data-label="90 % interval"], td[data-label="median"] { order: -1; }
  td[data-label="90 % interval"], td[data-label="median"] { grid-column: 1 / -1; font-weight: 600; }
  td::before { font-weight: 400; }
  dl { grid-template-columns: 1fr; gap: .1rem; }
  dt { max-width: none; }
  dd { margin-bottom: .8rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  section, figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  details::details-content { content-visibility: visible; height: auto; }
  .scale, .scale i, .scale b, .warning { print-color-adjust: exact; }
}
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

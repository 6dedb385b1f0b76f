"""The report: its words, its numbers and its pictures, on made-up fits."""

import io
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import matplotlib.image
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray

from dpplearn import plots, report, words
from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box

RNG = np.random.default_rng(0)
BARE = {"ess_bulk": None, "ess_tail": None, "r_hat": None}


def box(*upper: float) -> Box:
    return Box([0.0] * len(upper), [float(end) for end in upper])


def scattered(counts: list[int], dim: int = 2, **options: Any) -> PointPatterns:
    return PointPatterns.from_arrays([RNG.uniform(size=(n, dim)) for n in counts], **options)


def chosen(sizes: list[int], dim: int = 2, columns: tuple[str, ...] = ()) -> Subsets:
    lists = [RNG.choice(30, size, replace=False).tolist() for size in sizes]
    return Subsets.from_lists(lists, BaseSet(RNG.normal(size=(30, dim)), columns=columns))


def stats(low: float, middle: float, high: float, **more: Any) -> dict[str, Any]:
    return {"mean": middle, "sd": (high - low) / 3.29, "q05": low, "q50": middle, "q95": high, **more}


def made_fit(model: str, data: Any, parameters: dict, derived: dict, size: int | None = None, **summary: Any) -> Any:
    """A fit with what the report reads; draws are log-normal about each parameter's median."""
    mixed = {"r_hat": 1.001, "ess_bulk": 2000.0, "ess_tail": 1500.0}
    whole = {
        "model": model, "sampler": "slice", "normalizer": "exact", "normalizer_reason": None, "is_exact": True,
        "seed": 1, "units": None, "data": {}, "parameters": {name: {**mixed, **s} for name, s in parameters.items()},
        "derived": derived, "decisions": {"undecided": 0, "crossed": 0, "mean_rung": None, "likelihood_evaluations": 9},
        "lost_digits": 0, "timing": {"compile_s": None, "tune_s": 1.0, "draw_s": 2.0}, "converged": True,
        "warnings": [], **summary,
    }  # fmt: skip
    rng = np.random.default_rng(1)
    draws = {name: s["q50"] * np.exp(0.1 * rng.normal(size=(2, 40))) for name, s in parameters.items()}
    arrays: dict[str, Any] = {}
    for base in dict.fromkeys(map(words.base_name, draws)):
        parts = [values for name, values in draws.items() if words.base_name(name) == base]
        vector = (("chain", "draw", "D"), np.stack(parts, -1))
        arrays[base] = vector if f"{base}[0]" in draws else (("chain", "draw"), parts[0])
    priors = {base: dist.LogNormal(0.0, 1.0) for base in arrays}
    return SimpleNamespace(
        summary=whole,
        posterior=xarray.Dataset(arrays),
        model=SimpleNamespace(name=model, data=data, size=size, priors=priors),
        prior_draws={name: rng.lognormal(size=200) for name in draws},
        moments=None,
    )  # fmt: skip


def stationary(low: float, middle: float, high: float, **summary: Any) -> Any:
    data = scattered([20], window=box(1, 1), names=["<b>cells</b>"], unit="m")
    repulsion = stats(low, middle, high)
    fit = made_fit(
        "stationary", data, {"intensity": stats(15, 20, 25), "repulsion": repulsion},
        {"repulsion": repulsion, "regularity": stats(low / 2, middle / 2, high / 2), "range": stats(2.8, 3.2, 3.5),
         "expected_size": stats(15, 20, 25)},
        units={"intensity": "1/m²", "range": "m", "repulsion": None}, **summary,
    )  # fmt: skip
    fit.model.priors["repulsion"] = dist.Uniform(0.0, 1.0)
    fit.prior_draws["repulsion"] = np.linspace(0.001, 0.999, 200)
    return fit


def gaussian(data: Any, regularity: dict | None = None, sigma: tuple = (0.9, 1.0, 1.1), **more: Any) -> Any:
    other = "gamma" if isinstance(data, Subsets) else "rho"
    parameters = {f"{name}[{i}]": stats(*sigma) for name in (other, "sigma") for i in range(2)}
    derived = {"repulsion[0]": stats(0.1, 0.2, 0.3), "repulsion[1]": stats(0.2, 0.3, 0.4), "regularity": regularity}
    return made_fit("gaussian", data, parameters, {**derived, "expected_size": None}, **more)


MOMENTS = {
    "names": ["E|A|", "E Σx²"],
    "E|A|": {"predicted": RNG.normal(20, 1, 200), "observed": 21.0, "observed_se": None},
    "E Σx²": {"predicted": RNG.normal(2, 0.1, 200), "observed": 2.1, "observed_se": 0.2},
}


# Words


@pytest.mark.parametrize(
    ("quantiles", "verdict", "title"),
    [
        ((0.55, 0.71, 0.86), "clear", "The points repel each other"),
        ((0.003, 0.04, 0.15), "none", "Repulsion is not distinguishable from none"),
        ((0.08, 0.3, 0.6), "none", "Repulsion is not distinguishable from none"),  # below the prior's lowest decile
        ((0.64, 0.91, 0.99), "clear", "The points repel each other"),
        ((0.79, 0.95, 1.0), "full", "The points are as regular as this family allows, or more"),
        ((0.92, 0.97, 0.99), "full", "The points are as regular as this family allows, or more"),
    ],
)
def test_stationary_verdicts(quantiles: tuple, verdict: str, title: str) -> None:
    fit = stationary(*quantiles)
    assert (words.verdict(fit), words.headline(fit)) == (verdict, title)
    text = " ".join(words.lead(fit))
    assert "on a scale from 0 (no interaction) to 1 (the strongest this family can have)" in text
    assert ("piles up at the upper end" in text) == (verdict == "full")
    assert ("3.2 m (range, 90 % interval 2.8 to 3.5)" in text) == (verdict != "none")


def test_stationary_sentence() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    assert words.lead(fit)[0].startswith("Repulsion is 0.71 (90 % interval 0.55 to 0.86) on a scale")
    fit.summary["converged"] = False
    assert words.headline(fit) == "Preliminary: the points repel each other"


def test_a_sure_prior_for_strong_repulsion_is_not_called_none() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    fit.prior_draws["repulsion"] = np.linspace(0.8, 1, 200)
    assert words.verdict(fit) == "clear"


def test_gaussian_verdicts() -> None:
    points = scattered([12, 15])
    assert words.verdict(gaussian(points, regularity=stats(0.1, 0.2, 0.3))) == "clear"
    assert words.verdict(gaussian(points, regularity=stats(0.001, 0.02, 0.3))) == "none"
    lead = " ".join(words.lead(gaussian(points, regularity=stats(0.1, 0.2, 0.3))))
    assert "0.20 (90 % interval 0.10 to 0.30) along x and 0.30 (0.20 to 0.40) along y" in lead


def test_items_are_judged_by_sigma_against_its_prior_not_by_regularity() -> None:
    items = chosen([3, 4], columns=("size", "age"))
    fit = gaussian(items, regularity=stats(0.4, 0.5, 0.6), sigma=(0.01, 0.1, 1.0))
    assert words.headline(fit) == "Repulsion is not distinguishable from none"
    fit = gaussian(items, regularity=stats(0.001, 0.01, 0.02))
    assert words.headline(fit) == "Similar items seldom appear together"
    assert "along size and" in words.lead(fit)[0]


def test_a_given_size_is_said_and_what_is_not_defined_left_out() -> None:
    fit = gaussian(chosen([6, 6]), size=6)
    assert "Every set has 6 items: the number is given, not learned." in words.lead(fit)
    page = report.fit_report(fit)
    assert "regularity" not in page
    assert "expected_size" not in page


def test_uniform_on_items_has_no_repulsion_but_sigma() -> None:
    fit = made_fit("uniform", chosen([3, 4]), {"sigma": stats(0.9, 1, 1.1)}, {"repulsion": None})
    assert words.lead(fit)[0].startswith("Items exclude each other over a squared distance σ of 1.00 (90 % interval")


def test_warnings_are_the_fits_own_and_what_they_do_not_mention() -> None:
    fit = stationary(0.5, 0.6, 0.7, converged=False, warnings=["chains did not converge: run longer"])
    fit.summary["decisions"]["undecided"] = 2
    found = words.warnings(fit.summary)
    assert found[0] == "chains did not converge: run longer"
    assert [sum(word in line for line in found) for word in ("converge", "undecided")] == [1, 1]
    page = report.fit_report(fit)
    assert page.index("Before you use these numbers") < page.index("<h1>")
    assert "Before you use" not in report.fit_report(stationary(0.5, 0.6, 0.7))


def test_priors_as_text() -> None:
    assert words.prior_text(dist.LogNormal(-3.2, 1.0)) == "LogNormal(-3.2, 1)"
    assert words.prior_text(dist.LogNormal(np.array([-1.0, -2.0]), 1.0).to_event(1)) == "LogNormal([-1, -2], 1)"
    assert words.prior_text(dist.Uniform(0.0, 1.0).expand([3])) == "Uniform(0, 1)"


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (None, None, "–"), (float("nan"), 1.0, "–"), (float("inf"), None, "∞"), (0.0, None, "0"), (0.0, 0.1, "0.00"),
        (0.7123, 0.094, "0.71"), (0.7123, 0.012, "0.712"), (12345.0, 130.0, "12340"), (-3.25, 1.0, "−3.2"),
        (0.0003, 0.1, "0.0003"), (1.234e8, 1e7, "1.23 × 10⁸"), (1.234e-7, None, "1.23 × 10⁻⁷"), (42.0, None, "42"),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_their_spread_supports(value: float | None, spread: float | None, text: str) -> None:
    assert words.number(value, spread) == text


def test_units() -> None:
    assert words.with_unit("3.2", "m") == "3.2 m"
    assert words.with_unit("3.2", "0.1 metres") == "3.2 × 0.1 metres"
    assert words.with_unit("3.2", "unit") == words.with_unit("3.2", None) == "3.2"


# The page


class Page(HTMLParser):
    """Checks that tags close in order; collects headings and image descriptions."""

    VOID = {"meta", "br", "img"}  # noqa: RUF012

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.alts: list[str | None] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_and_well_formed() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    fit.moments = MOMENTS
    text = report.fit_report(fit)
    page = Page(text)
    assert page.open == []
    assert len(page.alts) == 5
    assert all(page.alts)
    assert text.count("<h1>") == 1
    outside = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    for sign in ("http:", "https:", "<script", "<link", "@import", "url("):
        assert sign not in outside
    assert "None" not in outside
    assert not re.search(r"\bnan\b", outside)


def test_page_is_the_same_every_time() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    assert report.fit_report(fit) == report.fit_report(fit)


def test_what_users_write_is_escaped() -> None:
    fit = stationary(0.55, 0.71, 0.86, warnings=["<script>alert(1)</script>"])
    fit.summary["units"]["range"] = "<i>m</i>"
    fit.summary["model"] = "<u>own</u>"
    text = report.fit_report(fit)
    for raw in ("<script>", "<i>m</i>", "<u>"):
        assert raw not in text
    assert "&lt;i&gt;m&lt;/i&gt;" in text


def test_nulls_everywhere_are_shown_as_dashes() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    for key in ("normalizer", "normalizer_reason", "is_exact", "seed", "units", "lost_digits", "converged", "timing",
                "decisions", "sampler"):  # fmt: skip
        fit.summary[key] = None
    fit.summary["derived"] = {"repulsion": None, "regularity": stats(0.2, 0.3, 0.4) | {"sd": None, "mean": None}}
    fit.summary["parameters"]["intensity"] |= {**BARE, "q05": None}
    text = report.fit_report(fit)
    assert 'data-label="unit" class=none>–' in text
    assert 'data-label="90 % interval" class=none>–' in text
    fit.summary["parameters"] = {name: dict.fromkeys(s) for name, s in fit.summary["parameters"].items()}
    assert "What the fit found" in report.fit_report(fit)


def test_what_did_not_mix_is_marked() -> None:
    fit = stationary(0.55, 0.71, 0.86)
    fit.summary["parameters"]["intensity"] |= {"r_hat": 1.2, "ess_bulk": 30.0}
    text = report.fit_report(fit)
    assert "1.200 ⚠" in text
    assert "30 ⚠" in text


# Pictures


def shape(figure: Any) -> tuple[int, ...]:
    return mpl.image.imread(io.BytesIO(plots.png(figure)), format="png").shape


@pytest.mark.parametrize(
    "data",
    [
        scattered([1], window=box(3, 1), unit="µm"),
        scattered([5, 0, 70] * 11, windows=[box(1, 1 + i) for i in range(33)], names=["a long name " * 9] * 33),
        scattered([4, 0], dim=2), scattered([0]), scattered([4, 0], dim=1),
        scattered([9, 4] * 8, dim=1, window=box(1)), scattered([9, 4], dim=3), scattered([9], dim=5),
        chosen([3, 0]), chosen([3] * 20, dim=1), chosen([3, 1, 0], dim=4), chosen([0]),
    ],
)  # fmt: skip
def test_all_kinds_of_data_are_drawn(data: Any) -> None:
    assert shape(plots.data(data))[1] <= plots.WIDTH * 180


def test_at_most_twelve_patterns_are_drawn_and_the_rest_is_said() -> None:
    figure = plots.data(scattered([3] * 31))
    assert len(figure.axes) == 12
    assert "12 of 31 patterns shown" in str(figure.get_supxlabel())
    assert plots.data(scattered([3] * 5)).get_supxlabel() == ""


def test_three_dimensions_are_said_to_be_seen_from_above() -> None:
    assert "3-D" in plots.data(scattered([3], dim=3)).get_supxlabel()


@pytest.mark.parametrize(
    "values",
    [np.full((2, 40), 3.0), np.full((2, 40), np.nan), RNG.normal(size=(2, 40)), RNG.lognormal(0, 3, (2, 40)),
     np.zeros((1, 1))],
)  # fmt: skip
@pytest.mark.parametrize(
    "prior", [np.array([]), np.full(50, np.inf), RNG.lognormal(0, 5, 50), np.geomspace(1e-300, 1e300, 50)]
)
def test_hard_draws_are_drawn(values: np.ndarray, prior: np.ndarray) -> None:
    posterior = xarray.Dataset({"a": (("chain", "draw"), values)})
    assert shape(plots.trace(posterior, ["a"]))[2] == 4
    assert shape(plots.autocorrelation(posterior, ["a"]))[2] == 4
    assert shape(plots.prior_posterior(posterior, {"a": prior}, ["a"], {"a": "m"}))[2] == 4


def test_draws_by_flat_name() -> None:
    values = RNG.normal(size=(2, 5, 3, 3))
    posterior = xarray.Dataset(
        {"a": (("chain", "draw", "i", "j"), values), "b": (("draw", "chain"), values[:, :, 0, 0].T)}
    )
    np.testing.assert_array_equal(plots.draws_of(posterior, "a[0,2]"), values[:, :, 0, 2])
    np.testing.assert_array_equal(plots.draws_of(posterior, "b"), values[:, :, 0, 0])


def test_equally_spaced_draws_have_a_density() -> None:
    posterior = xarray.Dataset({"a": (("chain", "draw"), np.linspace(0.2, 0.8, 80).reshape(2, 40))})
    prior = np.linspace(0.001, 0.999, 200)
    lines = plots.prior_posterior(posterior, {"a": prior}, ["a"], {}).axes[0].lines
    heights = np.asarray(lines[0].get_ydata())[1:-1]
    np.testing.assert_allclose(heights, 1, atol=0.2)


def test_log_axis_where_it_helps() -> None:
    prior = RNG.lognormal(0, 2, 500)
    posterior = xarray.Dataset({name: (("chain", "draw"), RNG.uniform(0.2, 0.4, (2, 40))) for name in "ab"})
    figure = plots.prior_posterior(posterior, {"a": prior, "b": RNG.uniform(size=500)}, ["a", "b"], {})
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]


def test_figures_change_no_global_setting_and_follow_none() -> None:
    before = dict(mpl.rcParams)
    posterior = xarray.Dataset({"a": (("chain", "draw"), np.random.default_rng(2).normal(size=(2, 40)))})
    first = plots.png(plots.trace(posterior, ["a"]))
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.facecolor": "black", "text.usetex": True}):
        assert plots.png(plots.trace(posterior, ["a"])) == first


def test_titles_do_not_overlap() -> None:
    figure = plots.data(scattered([9, 200] * 3, window=box(1, 1), names=["schizoaffective_01"] * 6))
    plots.png(figure)
    boxes = [axes.title.get_window_extent() for axes in figure.axes] + [
        axes._left_title.get_window_extent() for axes in figure.axes
    ]
    drawn = [box for box in boxes if box.width > 2]
    assert len(drawn) == 6
    assert not any(a.overlaps(b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert all(box.x1 <= figure.bbox.x1 for box in drawn)


def test_moments_without_standard_errors_are_drawn() -> None:
    assert shape(plots.moments(MOMENTS))[2] == 4

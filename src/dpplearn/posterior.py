"""Draws as ArviZ groups, and the summary of a fit: the only module that knows arviz-base and arviz-stats."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from arviz_stats.base.array import array_stats
from scipy import stats

from dpplearn.data import PointPatterns, Subsets
from dpplearn.model import Model, constrain
from dpplearn.model import derived as dv
from dpplearn.model.priors import flat_names

MAX_R_HAT, MIN_ESS = 1.01, 400
PREDICTED = 400  # draws that moments are predicted for


def parameters_of(model: Model, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Unconstrained positions (chain, draw, p) as parameters (chain · draw, …) on their own scale."""
    with jax.enable_x64(True):
        flat = jnp.asarray(positions.reshape(-1, positions.shape[-1]))
        params = jax.vmap(lambda z: constrain(model.problem.priors, z)[0])(flat)
        return {name: np.asarray(values) for name, values in params.items()}


def prior_draws(model: Model, seed: int, count: int = 2000) -> dict[str, np.ndarray]:
    """Draws from the priors by flat name; those a float cannot hold are left out."""
    result = {}
    with jax.enable_x64(True):
        key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
        for i, (name, prior) in enumerate(model.priors.items()):
            parts = prior if isinstance(prior, tuple) else (prior,)
            keys = jax.random.split(jax.random.fold_in(key, i), len(parts))
            values = [np.asarray(p.sample(k, (count,))) for p, k in zip(parts, keys, strict=True)]
            columns = np.stack(values, 1) if isinstance(prior, tuple) else values[0]
            for flat, column in zip(flat_names(name, columns.shape[1:]), columns.reshape(count, -1).T, strict=True):
                result[flat] = column[np.isfinite(column)]
    return result


def to_tree(model: Model, positions: np.ndarray, statistics: Mapping[str, np.ndarray]) -> xarray.DataTree:
    """The groups of posterior.nc: the posterior with its derived quantities, sample statistics, observed data."""
    chains, draws = positions.shape[:2]
    params = parameters_of(model, positions)
    everything = params | dv.derive(model, params)
    shaped = {name: values.reshape(chains, draws, *values.shape[1:]) for name, values in everything.items()}
    data = model.data
    seen = {"index": data.index} if isinstance(data, Subsets) else {"points": data.points, "mask": data.mask}
    groups = {"posterior": shaped, "sample_stats": dict(statistics), "observed_data": seen}
    return arviz_base.from_dict(groups)


def flat_columns(posterior: xarray.Dataset) -> dict[str, np.ndarray]:
    """Every scalar quantity as (chain, draw), by flat name."""
    columns = {}
    for name in posterior.data_vars:
        values = posterior[name].values
        names = flat_names(str(name), values.shape[2:])
        columns |= dict(zip(names, np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0), strict=True))
    return columns


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def describe(values: np.ndarray) -> dict[str, float | None]:
    """Mean, standard deviation and quantiles of (chain, draw); null where a number does not exist."""
    flat = values[np.isfinite(values)]
    if flat.size < values.size and flat.size < 100:
        return dict.fromkeys(("mean", "sd", "q05", "q50", "q95"))
    q05, q50, q95 = np.quantile(flat, [0.05, 0.5, 0.95])
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.mean(flat), np.std(flat, ddof=1) if flat.size > 1 else np.nan, q05, q50, q95
    return {key: _number(n) for key, n in zip(("mean", "sd", "q05", "q50", "q95"), numbers, strict=True)}


def convergence(values: np.ndarray) -> dict[str, float | None]:
    """Rank-normalised split R-hat, bulk and tail ESS of (chain, draw)."""
    if values.shape[1] < 4 or not np.isfinite(values).all():
        return dict.fromkeys(("r_hat", "ess_bulk", "ess_tail"))
    with np.errstate(all="ignore"):
        r_hat = array_stats.rhat(values, chain_axis=0, draw_axis=1) if values.shape[0] > 1 else np.nan
        bulk = array_stats.ess(values, chain_axis=0, draw_axis=1, method="bulk")
        tail = array_stats.ess(values, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))
    return {k: _number(v) for k, v in zip(("r_hat", "ess_bulk", "ess_tail"), (r_hat, bulk, tail), strict=True)}


def summarize(model: Model, posterior: xarray.Dataset, run: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json. `run` holds sampler, seed, counts of decisions and timing."""
    columns = flat_columns(posterior)
    learned = [flat for name in model.priors for flat in flat_names(name, posterior[name].shape[2:])]
    parameters = {name: describe(columns[name]) | convergence(columns[name]) for name in learned}
    derived = {name: describe(values) for name, values in columns.items() if name not in learned}
    if model.name == "stationary":
        derived = {"repulsion": describe(columns["repulsion"])} | derived
    for name in ("repulsion", "regularity", "expected_size"):
        if not any(key.split("[")[0] == name for key in derived):
            derived[name] = dict.fromkeys(("mean", "sd", "q05", "q50", "q95"))
    converged = all(
        p["r_hat"] is not None
        and p["r_hat"] <= MAX_R_HAT
        and (p["ess_bulk"] or 0) >= MIN_ESS
        and (p["ess_tail"] or 0) >= MIN_ESS
        for p in parameters.values()
    )
    warnings = [] if converged else [_not_converged(parameters)]
    if run["decisions"]["undecided"]:
        warnings.append(f"{run['decisions']['undecided']} decisions stayed undecided: the posterior is not exact")
    if run["decisions"]["crossed"]:
        warnings.append(f"{run['decisions']['crossed']} times bounds crossed: please report this")
    if run["lost_draws"]:  # a lost evaluation elsewhere was only looked at
        warnings.append(
            f"the likelihoods of {run['lost_draws']} draws lost digits to round-off (`is_lost` in posterior.nc)"
        )
    sizes = _sizes_at_draws(model, posterior)
    warnings = _count_warnings(model, sizes) + warnings
    return {
        "model": model.name,
        "sampler": run["sampler"],
        "normalizer": "exact",
        "normalizer_reason": "exact and affordable: " + _exactness(model),
        "is_exact": run["decisions"]["undecided"] == 0 and run["decisions"]["crossed"] == 0,
        "seed": run["seed"],
        "units": units(model, list(columns)),
        "data": _counts(model),
        "parameters": parameters,
        "derived": derived,
        "decisions": run["decisions"],
        "lost_digits": run["lost_digits"],
        "timing": run["timing"],
        "converged": converged,
        "warnings": warnings,
    }


def _not_converged(parameters: Mapping[str, Mapping[str, float | None]]) -> str:
    r_hats = [p["r_hat"] for p in parameters.values()]
    effective = min(p[key] or 0.0 for p in parameters.values() for key in ("ess_bulk", "ess_tail"))
    largest = max((r for r in r_hats if r is not None), default=None)
    reasons = []
    if largest is None or None in r_hats:
        reasons.append("R-hat is not known")
    elif largest > MAX_R_HAT:
        reasons.append(f"largest R-hat {largest:.3f} (wanted at most {MAX_R_HAT})")
    if effective < MIN_ESS:
        reasons.append(f"fewest effective draws {effective:.0f} (wanted {MIN_ESS})")
    return f"not converged: {', '.join(reasons)}; go on with --resume and a larger --draws, or tune longer"


def _exactness(model: Model) -> str:
    if isinstance(model.data, Subsets):
        return (
            f"Cholesky of the {len(model.data.base)} by {len(model.data.base)} matrix I + L"
            if model.size is None
            else (f"eigenvalues of the {len(model.data.base)} by {len(model.data.base)} matrix L")
        )
    return {"gaussian": "closed spectrum on all of space", "custom": "a separable continuous kernel"}.get(
        model.name, "separable spectrum on the window"
    )


def _counts(model: Model) -> dict[str, Any]:
    data = model.data
    what = "sets" if isinstance(data, Subsets) else "patterns"
    counts: dict[str, Any] = {what: len(data), "points": int(data.counts.sum()), "mean_size": float(data.counts.mean())}
    counts |= {"smallest": int(data.counts.min()), "largest": int(data.counts.max())}
    return counts | ({"items": len(data.base)} if isinstance(data, Subsets) else {"dimension": data.dim})


def units(model: Model, names: list[str]) -> dict[str, str | None]:
    """The unit of each flat name, from the unit of the coordinates."""
    data = model.data
    unit = data.unit if isinstance(data, PointPatterns) else None
    if not unit:
        return dict.fromkeys(names)
    own = f"({unit})" if " " in unit else unit
    dim = data.dim if isinstance(data, PointPatterns) else 1
    area = own + {1: "", 2: "²", 3: "³"}.get(dim, f"^{dim}")
    table = {"rho": unit, "sigma": unit, "mu": unit, "range": unit, "intensity": f"1/{area}"}
    if model.name == "uniform":
        table["alpha"] = f"1/{area}"
    return {name: table.get(name.split("[")[0]) for name in names}


def _sizes_at_draws(model: Model, posterior: xarray.Dataset) -> dv.Sizes | None:
    flat = {name: posterior[name].values.reshape(-1, *posterior[name].shape[2:]) for name in model.priors}
    return None if model.name == "custom" else dv.expected_sizes(model, dv.thin(flat, 100))


def _count_warnings(model: Model, sizes: dv.Sizes | None) -> list[str]:
    """Counts that differ more than shared parameters allow; a mean size that fixed amplitude cannot reach."""
    if sizes is None:
        return []
    mean, variance, counts = np.nanmean(sizes.mean, axis=0), np.nanmean(sizes.variance, axis=0), model.data.counts
    expected = np.broadcast_to(mean, counts.shape)
    within = np.broadcast_to(variance, counts.shape)
    found = []
    if len(counts) > 1:
        excess = float(np.sum((counts - expected) ** 2 / np.maximum(within, 1e-12)))
        p_value = float(stats.chi2.sf(excess, len(counts) - 1))
        if p_value < 0.01:
            what = "patterns" if isinstance(model.data, PointPatterns) else "sets"
            found.append(
                f"the {what} differ in their counts ({counts.min()} to {counts.max()}) more than one shared "
                f"{'intensity' if model.name == 'stationary' else 'set of parameters'} allows "
                f"(variance {excess / (len(counts) - 1):.1f} times what the model predicts, {_p_text(p_value)}): "
                "read the shared estimates with care, or fit groups apart"
            )
    if isinstance(model.data, Subsets) and "alpha" not in model.priors:
        error = np.sqrt(np.mean(within) / len(counts) + np.nanvar(sizes.mean.mean(axis=1)))
        if abs(counts.mean() - expected.mean()) > 2.576 * error:
            found.append(
                f"sets hold {counts.mean():.3g} items on average where the model, whose amplitude is fixed at 1, "
                f"predicts {expected.mean():.3g}: try --amplitude learn"
            )
    return found


def _p_text(p_value: float) -> str:
    return f"p = {p_value:.2g}" if p_value >= 1e-10 else "p < 1e-10"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """JSON without NaN or Infinity, in one move."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def write_tree(path: Path, tree: xarray.DataTree) -> None:
    """posterior.nc, in one move."""
    partial = path.with_name(path.name + ".partial")
    tree.to_netcdf(partial, engine="h5netcdf")
    partial.replace(path)

"""The posterior of every sampler against quadrature in plain NumPy that shares nothing with the package.

Each quantity (mean, 5 % and 95 % quantile of every parameter) must lie within 4 Monte Carlo standard errors:
a two-sided false alarm of 6e-5 per number, about 1.8 % over the 300 numbers of the whole file. Seeds are fixed.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from scipy.interpolate import CubicSpline

import dpplearn as dpp
from dpplearn import mcmc

SAMPLERS = {
    "slice": (dpp.slice_sampler(), 2500),
    "axes": (dpp.axes_sampler(), 4000),
    "random-direction": (dpp.random_direction_sampler(), 6000),
    "hyperrectangle": (dpp.hyperrectangle_sampler(), 10_000),
    "metropolis": (dpp.metropolis_sampler(), 15_000),
}


def samplers(*quick: str):
    """Every sampler, those not named marked slow."""
    return pytest.mark.parametrize(
        "sampler", [pytest.param(s, marks=[] if s in quick else pytest.mark.slow) for s in SAMPLERS]
    )


# ------------------------------------------------------------------ quadrature

Numbers = dict[str, np.ndarray]  # parameter → (mean, 5 % quantile, 95 % quantile)


class Axis:
    """Gauss–Legendre nodes of one coordinate z, and the parameter as a function of it."""

    def __init__(self, name: str, low: float, high: float, count: int, is_log: bool = True):
        t, w = np.polynomial.legendre.leggauss(count)
        self.name, self.low, self.high, self.is_log = name, low, high, is_log
        self.z, self.weights = low + (t + 1) / 2 * (high - low), w * (high - low) / 2

    def value(self, z: np.ndarray) -> np.ndarray:
        return np.exp(z) if self.is_log else z


def quadrature(axes: list[Axis], log_posterior: np.ndarray) -> Numbers:
    """Mean and quantiles of every parameter from the log posterior density of the z on the tensor grid."""
    density = np.exp(log_posterior - log_posterior.max())
    result = {}
    for d, axis in enumerate(axes):
        others = density
        for e, other in reversed(list(enumerate(axes))):
            others = others if e == d else np.tensordot(others, other.weights, (e, 0))
        marginal = others / np.sum(others * axis.weights)
        if axis.is_log:
            assert max(marginal[0], marginal[-1]) * (axis.high - axis.low) < 1e-4, (
                f"{axis.name}: the grid cuts mass off"
            )
        z = np.linspace(axis.low, axis.high, 20_001)
        cumulative = CubicSpline(axis.z, marginal).antiderivative()(z)
        cumulative -= cumulative[0]
        assert cumulative[-1] == pytest.approx(1, abs=1e-4)
        quantiles = axis.value(np.interp([0.05, 0.95], cumulative / cumulative[-1], z))
        result[axis.name] = np.array([np.sum(marginal * axis.weights * axis.value(axis.z)), *quantiles])
    return result


def normal(z: np.ndarray, prior: tuple[float, float]) -> np.ndarray:
    """The log density of log θ for θ ~ LogNormal(median, sd)."""
    median, sd = prior
    return -0.5 * ((z - np.log(median)) / sd) ** 2


def log_normals(**priors: tuple[float, float]):
    with jax.enable_x64(True):
        return {name: dist.LogNormal(np.log(median), sd) for name, (median, sd) in priors.items()}


def squared_distances(x: np.ndarray) -> np.ndarray:
    return np.sum((x[:, None] - x[None]) ** 2, axis=-1)


# ------------------------------------------------------------------ the comparison


def standard_errors_off(fit: dpp.Fit, expected: Numbers) -> np.ndarray:
    """(draws - quadrature) / MCSE of the mean and of the two quantiles, for every parameter."""
    off = []
    for name, numbers in expected.items():
        draws = fit.posterior[name].values
        draws = draws[..., 0] if draws.ndim == 3 else draws  # of a vector the first component
        found = np.mean(draws), *np.quantile(draws, [0.05, 0.95])
        errors = [array_stats.mcse(draws, method="mean")]
        errors += [array_stats.mcse(draws, method="quantile", prob=p) for p in (0.05, 0.95)]
        off += list((np.array(found) - numbers) / np.array(errors))
    return np.array(off)


def check(model: dpp.Model, sampler: str, expected: Numbers, seed: int, part: float = 1.0) -> None:
    """`part` of the usual draws will do where two parameters are learned and a likelihood costs a millisecond."""
    step, draws = SAMPLERS[sampler]
    fit = dpp.fit(model, seed=seed, sampler=step, draws=int(part * draws), tune=500)
    assert all(p["r_hat"] < 1.02 and p["ess_bulk"] > 400 for p in fit.summary["parameters"].values())
    assert fit.summary["decisions"]["undecided"] == fit.summary["decisions"]["crossed"] == 0
    off = standard_errors_off(fit, expected)
    assert np.all(np.abs(off) < 4), off


# ------------------------------------------------------------------ gaussian on R^2

CONTINUOUS_PRIORS = {"alpha": (150.0, 1.0), "rho": (1.0, 0.5), "sigma": (0.25, 0.5)}


@pytest.fixture(scope="module")
def points() -> dpp.PointPatterns:
    return dpp.read_points(Path(__file__).parent / "data" / "continuous.csv")


@pytest.fixture(scope="module")
def continuous(points):
    model = dpp.gaussian(points, isotropic=True, center="origin", priors=log_normals(**CONTINUOUS_PRIORS))
    axes, log_posterior = continuous_log_posterior(points)
    return model, quadrature(axes, log_posterior)


def continuous_log_posterior(points: dpp.PointPatterns) -> tuple[list[Axis], np.ndarray]:
    x = points.arrays()[0]
    assert 35 <= len(x) <= 45
    axes = [Axis("alpha", 2.5, 10.5, 40), Axis("rho", -0.8, 0.8, 40), Axis("sigma", -3.0, -0.45, 40)]
    log_alpha, log_rho, log_sigma = np.meshgrid(*[axis.z for axis in axes], indexing="ij")
    alpha, rho = np.exp(log_alpha), np.exp(log_rho)
    # the printed spectrum with γ = (σ/ρ)²; the level n has multiplicity n + 1 in two dimensions
    gamma = np.exp(2 * (log_sigma - log_rho))
    beta2 = np.sqrt(1 + 2 / gamma)
    c2, ratio = 1 / ((beta2 + 1) / 2 + 1 / (2 * gamma)), 1 / (gamma * (beta2 + 1) + 1)
    log_z = sum((n + 1) * np.log1p(alpha * c2 * ratio**n) for n in range(700))
    distances = squared_distances(x)
    log_det_k = np.array([np.linalg.slogdet(np.exp(-distances / (2 * s**2)))[1] for s in np.exp(axes[2].z)])
    log_q2 = len(x) * (log_alpha - np.log(np.pi * rho**2)) - np.sum(x**2) / rho**2
    log_prior = sum(
        normal(z, p) for z, p in zip((log_alpha, log_rho, log_sigma), CONTINUOUS_PRIORS.values(), strict=True)
    )
    return axes, log_prior + log_q2 + log_det_k - log_z


@samplers("slice", "metropolis")
def test_gaussian_on_the_plane(continuous, sampler):
    model, expected = continuous
    check(model, sampler, expected, seed=1)


@samplers("slice")
def test_gaussian_around_a_learned_center(points, sampler):
    """The exponent of q² is Σ|x|² + n|x̄-μ|² - n|x̄|² over -ρ², and μ[1] is integrated in closed form."""
    where, width = 0.3, 0.2
    priors = log_normals(**CONTINUOUS_PRIORS) | {"mu": dist.Normal(where, width)}
    model = dpp.gaussian(points, isotropic=True, center="learn", priors=priors)
    axes, about_origin = continuous_log_posterior(points)
    x = points.arrays()[0]
    n, (mean_0, mean_1), rho2 = len(x), np.mean(x, axis=0), np.exp(2 * axes[1].z)[None, :, None]
    # ∫ N(μ; where, width²) exp(-n (x̄-μ)²/ρ²) dμ ∝ ρ √(1/(ρ²/2n + width²)) exp(-(x̄-where)²/2(ρ²/2n + width²))
    spread = rho2 / (2 * n) + width**2
    integral_1 = 0.5 * np.log(rho2 / spread) - (mean_1 - where) ** 2 / (2 * spread)
    axes.append(Axis("mu", where - 6 * width, where + 6 * width, 80, is_log=False))
    at_0 = -n * (mean_0 - axes[3].z) ** 2 / rho2[..., None] - 0.5 * ((axes[3].z - where) / width) ** 2
    about_mean = about_origin + n * (mean_0**2 + mean_1**2) / rho2 + integral_1
    expected = quadrature(axes, about_mean[..., None] + at_0)
    assert abs(expected["mu"][0] - where) > width / 2  # the data say something else than the prior
    check(model, sampler, expected, seed=6)


def test_a_sampler_without_the_log_jacobian_is_caught(continuous):
    model, expected = continuous

    def forgetful(target, tuning, key, current):
        # z = log θ for every parameter here, so the log-Jacobian is Σ z
        def evaluate(position, rung):
            known = target.evaluate(position, rung)
            return known._replace(bounds=mcmc.Bounds(*(b - jnp.sum(position) for b in known.bounds)))

        state = current._replace(bounds=mcmc.Bounds(*(b - jnp.sum(current.position) for b in current.bounds)))
        state, info = mcmc.metropolis_sampler().step(mcmc.Target(evaluate), tuning, key, state)
        return state._replace(bounds=mcmc.Bounds(*(b + jnp.sum(state.position) for b in state.bounds))), info

    fit = dpp.fit(model, seed=1, sampler=replace(mcmc.metropolis_sampler(), step=forgetful), draws=15_000, tune=1000)
    off = standard_errors_off(fit, expected)
    assert np.sum(np.abs(off) > 4) >= 5, off


# ------------------------------------------------------------------ stationary and uniform on windows


def scattered(seed: int, count: int, box: dpp.Box, apart: float) -> np.ndarray:
    """A fixed pattern whose points keep apart: darts, thrown until `count` have stuck."""
    rng, points = np.random.default_rng(seed), np.empty((0, box.dim))
    while len(points) < count:
        dart = rng.uniform(box.lower, box.upper)
        if not len(points) or np.min(np.sum((points - dart) ** 2, axis=1)) > apart**2:
            points = np.concatenate([points, dart[None]])
    return points


UNIT = dpp.Box([0.0, 0.0], [1.0, 1.0])
THREE = [UNIT, dpp.Box([-1.0, 2.0], [0.5, 3.0]), dpp.Box([3.0, 0.0], [4.5, 1.5])]
WINDOWED = {
    "one pattern": dpp.PointPatterns.from_arrays([scattered(1, 24, UNIT, 0.09)], window=UNIT),
    "three windows": dpp.PointPatterns.from_arrays(
        [scattered(i, n, box, 0.08) for i, (n, box) in enumerate(zip((14, 26, 32), THREE, strict=True))], windows=THREE
    ),
}


def side_modes(length: float, sigma: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of exp(-(x-y)²/(2σ²)) on [0, length], and e·φ at the points x, by quadrature on Gauss nodes."""
    t, w = np.polynomial.legendre.leggauss(int(3.5 * length / sigma) + 16)
    t, w = (t + 1) / 2 * length, np.sqrt(w * length / 2)
    e, v = np.linalg.eigh(w[:, None] * np.exp(-((t[:, None] - t) ** 2) / (2 * sigma**2)) * w)
    strong = e > 1e-14 * e[-1]
    return e[strong], np.exp(-((x[:, None] - t) ** 2) / (2 * sigma**2)) @ (w[:, None] * v[:, strong])


def stationary_log_likelihood(x: np.ndarray, box: dpp.Box, intensity: float, sigma: float) -> float:
    """log det(I - K) + log det L_A for L = K (I - K)⁻¹ = K + K² (I - K)⁻¹, all tensor modes that matter."""
    (e0, g0), (e1, g1) = (side_modes(box.lengths[d], sigma, x[:, d] - box.lower[d]) for d in range(2))
    kappa = intensity * np.outer(e0, e1)
    i, j = np.nonzero(kappa > 1e-6)  # what is left out is of second order in κ
    kappa = kappa[i, j]
    features = intensity * g0[:, i] * g1[:, j]
    # Σ κ² φφᵀ/(1-κ), and features² = κ² φ²; the weak modes enter log det(I - K) by the trace that is left
    marginal = intensity * np.exp(-squared_distances(x) / (2 * sigma**2))
    log_fredholm = np.sum(np.log1p(-kappa) + kappa) - intensity * box.volume
    return log_fredholm + np.linalg.slogdet(marginal + (features / (1 - kappa)) @ features.T)[1]


@pytest.fixture(scope="module")
def stationary_expected() -> Callable[[str], Numbers]:
    kept: dict[str, Numbers] = {}

    def expected(name: str) -> Numbers:
        if name not in kept:
            data = WINDOWED[name]
            high = 4.4 if name == "one pattern" else 3.5
            axes = [Axis("intensity", 2.0, high, 20), Axis("repulsion", 0.1, 1.0, 14, is_log=False)]
            log_posterior = np.empty((20, 14))
            for i, z in enumerate(axes[0].z):
                for j, u in enumerate(axes[1].z):
                    sigma = np.sqrt(u / (2 * np.pi * np.exp(z)))
                    terms = [
                        stationary_log_likelihood(x, box, np.exp(z), sigma)
                        for x, box in zip(data.arrays(), data.windows, strict=True)
                    ]
                    log_posterior[i, j] = normal(z, (22.0, 0.5)) + sum(terms)
            kept[name] = quadrature(axes, log_posterior)
        return kept[name]

    return expected


def stationary_model(name: str) -> dpp.Model:
    with jax.enable_x64(True):
        priors = log_normals(intensity=(22.0, 0.5)) | {"repulsion": dist.Uniform(0.1, 1.0)}
    return dpp.stationary(WINDOWED[name], priors=priors)


@samplers("slice")
def test_stationary_on_one_window(stationary_expected, sampler):
    check(stationary_model("one pattern"), sampler, stationary_expected("one pattern"), seed=2, part=0.25)


@samplers()
def test_stationary_on_three_windows(stationary_expected, sampler):
    check(stationary_model("three windows"), sampler, stationary_expected("three windows"), seed=3, part=0.25)


def uniform_expected(name: str) -> Numbers:
    """One eigenproblem per σ and side serves every α: log Z = Σ log(1 + α e e')."""
    data = WINDOWED[name]
    axes = [Axis("alpha", 1.0, 9.0, 60), Axis("sigma", -4.8, -1.2, 40)]
    alpha = np.exp(axes[0].z)
    columns = []
    for z in axes[1].z:
        total = normal(axes[0].z, (60.0, 1.0)) + normal(z, (0.07, 0.4))
        for x, box in zip(data.arrays(), data.windows, strict=True):
            e0, e1 = (side_modes(length, np.exp(z), np.empty(0))[0] for length in box.lengths)
            modes = np.sort(np.outer(e0, e1).ravel())[::-1]
            # the modes that are left are so weak that log(1 + αe) = αe, and their sum is what is left of the trace
            strong = modes[: np.searchsorted(np.cumsum(modes), box.volume * (1 - 1e-12)) + 1]
            log_z = np.sum(np.log1p(alpha[:, None] * strong), axis=1) + alpha * (box.volume - np.sum(strong))
            log_det_k = np.linalg.slogdet(np.exp(-squared_distances(x) / (2 * np.exp(2 * z))))[1]
            total = total + len(x) * axes[0].z + log_det_k - log_z
        columns.append(total)
    return quadrature(axes, np.stack(columns, axis=1))


@pytest.fixture(scope="module")
def uniform_numbers() -> dict[str, Numbers]:
    return {}


@pytest.mark.parametrize(
    "name", ["one pattern", pytest.param("three windows", marks=pytest.mark.slow)], ids=lambda name: name.split()[0]
)
@samplers("slice")
def test_uniform_on_windows(uniform_numbers, sampler, name):
    if name not in uniform_numbers:
        uniform_numbers[name] = uniform_expected(name)
    priors = log_normals(alpha=(60.0, 1.0), sigma=(0.07, 0.4))
    model = dpp.uniform(WINDOWED[name], isotropic=True, priors=priors)
    check(model, sampler, uniform_numbers[name], seed=4, part=0.25)


# ------------------------------------------------------------------ a 6-DPP on a grid of items

GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, 5)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
SETS = [[0, 4, 12, 17, 20, 24], [1, 3, 10, 14, 16, 23], [2, 5, 9, 11, 18, 22], [0, 7, 8, 14, 16, 22]]


def grid_kernel(gamma: float, sigma: float) -> np.ndarray:
    q = np.exp(-np.sum(GRID**2, axis=1) / (2 * gamma))
    return q[:, None] * np.exp(-squared_distances(GRID) / (2 * sigma)) * q


def log_e6(matrix: np.ndarray) -> float:
    """The recursion itself: 25 eigenvalues of moderate size need no logarithms."""
    e = np.zeros(7)
    e[0] = 1
    for value in np.linalg.eigvalsh(matrix):
        e[1:] += value * e[:-1]
    return float(np.log(e[6]))


def test_the_normaliser_of_the_quadrature_is_the_sum_over_all_subsets():
    matrix = grid_kernel(1.3, 0.2)
    every = np.array(list(combinations(range(25), 6)))
    total = np.sum(np.linalg.det(matrix[every[:, :, None], every[:, None, :]]))
    assert len(every) == 177_100
    assert log_e6(matrix) == pytest.approx(np.log(total), rel=1e-10)


@pytest.fixture(scope="module")
def six():
    priors = {"gamma": (2.0, 0.7), "sigma": (0.25, 0.7)}
    data = dpp.Subsets.from_lists(SETS, GRID)
    model = dpp.gaussian(data, isotropic=True, size=6, priors=log_normals(**priors))
    axes = [Axis("gamma", -2.3, 4.2, 40), Axis("sigma", -5.5, 2.3, 40)]
    log_posterior = np.empty((40, 40))
    for i, g in enumerate(axes[0].z):
        for j, s in enumerate(axes[1].z):
            matrix = grid_kernel(np.exp(g), np.exp(s))
            terms = [np.linalg.slogdet(matrix[np.ix_(chosen, chosen)])[1] - log_e6(matrix) for chosen in SETS]
            log_posterior[i, j] = normal(g, priors["gamma"]) + normal(s, priors["sigma"]) + sum(terms)
    return model, quadrature(axes, log_posterior)


FREE = [[0, 4, 12, 20, 24], [2, 10, 14, 22], [6, 8, 13, 16, 21, 23], [1, 9, 17], [5, 7, 12, 19, 20]]


@samplers("slice")
def test_a_learned_amplitude_on_a_grid(sampler):
    """The priors are not in the order of the alphabet, in which compiled code sees them."""
    priors = {"gamma": (2.0, 0.7), "sigma": (0.25, 0.7), "alpha": (0.5, 1.0)}
    data = dpp.Subsets.from_lists(FREE, GRID)
    model = dpp.gaussian(data, isotropic=True, amplitude="learn", priors=log_normals(**priors))
    assert list(model.priors) == list(priors)
    axes = [Axis("gamma", -2.3, 4.2, 30), Axis("sigma", -5.5, 2.3, 30), Axis("alpha", -6.0, 6.0, 40)]
    log_posterior = np.empty((30, 30, 40))
    for i, g in enumerate(axes[0].z):
        for j, s in enumerate(axes[1].z):
            matrix, a = grid_kernel(np.exp(g), np.exp(s)), axes[2].z
            log_z = np.sum(np.log1p(np.exp(a)[:, None] * np.clip(np.linalg.eigvalsh(matrix), 0, None)), axis=1)
            terms = [len(f) * a + np.linalg.slogdet(matrix[np.ix_(f, f)])[1] - log_z for f in FREE]
            log_prior = normal(g, priors["gamma"]) + normal(s, priors["sigma"]) + normal(a, priors["alpha"])
            log_posterior[i, j] = log_prior + sum(terms)
    check(model, sampler, quadrature(axes, log_posterior), seed=7)


@samplers("slice")
def test_a_six_dpp_on_a_grid(six, sampler):
    model, expected = six
    check(model, sampler, expected, seed=5)

"""Likelihoods are probabilities: sums and integrals over all sets are one; derived quantities and priors by hand."""

from functools import cache, partial
from itertools import chain, combinations
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import dpplearn as dpp
from dpplearn.errors import InputError
from dpplearn.kernels import ContinuousGaussian, Gaussian, Stationary, Uniform, similarity_matrix
from dpplearn.likelihood import log_det_items, log_det_points, log_det_real_space
from dpplearn.linalg import log_esp_of_matrix
from dpplearn.model import constrain, log_density, unconstrain
from dpplearn.model.density import OnItems, OnRealSpace, log_likelihood
from dpplearn.model.derived import derive, expected_sizes, interior_occupation, item_moments, moments
from dpplearn.normalizer import l_matrix, log_z_items, log_z_real_space
from dpplearn.spectra import window

ITEMS = np.random.default_rng(0).normal(size=(7, 2))


def nodes(count, low, high):
    t, w = special.roots_legendre(count)
    return low + (t + 1) * (high - low) / 2, w * (high - low) / 2


def exponential(x, y):
    """A kernel given as a plain function."""
    return jnp.exp(x @ y)


def all_subsets(n, sizes):
    rows = chain.from_iterable(combinations(range(n), k) for k in sizes)
    index = np.full((sum(comb(n, k) for k in sizes), n), -1)
    for row, members in zip(index, rows, strict=True):
        row[: len(members)] = members
    return index


with jax.enable_x64(True):  # modules are read outside of the fixture
    KERNELS = {
        "isotropic": Gaussian(sigma=jnp.array(0.7), gamma=jnp.array(1.5)),
        "diagonal": Gaussian(sigma=jnp.array([0.7, 0.2]), gamma=jnp.array([1.5, 0.4])),
        "uniform": Gaussian(sigma=jnp.array(0.7)),
        "amplitude": Gaussian(sigma=jnp.array(0.7), gamma=jnp.array([1.5, 3.0]), alpha=jnp.array(4.2)),
        "function": exponential,
    }


def log_p_of_subsets(kernel, index, size):
    """log P of each subset alone, through the density's own machinery."""

    @jax.jit
    def run(kernel_leaves, items, index):
        whole = exponential if kernel is exponential else kernel_leaves

        def one(row):
            return log_likelihood(whole, OnItems(items, row[None]), size)[0].lower

        return jax.lax.map(one, index)

    return np.asarray(run(None if kernel is exponential else kernel, jnp.array(ITEMS), jnp.array(index)))


# ------------------------------------------------------------------ items


@pytest.mark.parametrize("name", KERNELS)
def test_probabilities_of_all_subsets_sum_to_one(name):
    index = all_subsets(7, range(8))
    log_p = log_p_of_subsets(KERNELS[name], index, None)
    assert abs(np.sum(np.exp(log_p)) - 1) < 1e-10
    # a normaliser without the identity is caught
    wrong = log_p + np.linalg.slogdet(np.eye(7) + np.asarray(l_matrix(KERNELS[name], jnp.array(ITEMS))))[1]
    assert abs(np.sum(np.exp(wrong)) - 1) > 1e-10


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1, 3])
def test_probabilities_of_all_subsets_of_a_size_sum_to_one(name, size):
    log_p = log_p_of_subsets(KERNELS[name], all_subsets(7, [size]), size)
    assert abs(np.sum(np.exp(log_p)) - 1) < 1e-10


def test_the_whole_base_set_is_certain_when_all_items_are_asked_for():
    assert abs(log_p_of_subsets(KERNELS["diagonal"], np.arange(7)[None], 7)[0]) < 1e-10


def test_probability_of_a_subset_is_the_ratio_of_determinants():
    kernel = KERNELS["amplitude"]
    matrix = np.asarray(l_matrix(kernel, jnp.array(ITEMS)))
    q = np.sqrt(4.2) * np.exp(-0.5 * np.sum(ITEMS**2 / [1.5, 3.0], axis=1))
    squared = np.sum((ITEMS[:, None] - ITEMS) ** 2, axis=-1)
    np.testing.assert_allclose(matrix, q[:, None] * np.exp(-0.5 * squared / 0.7) * q, rtol=1e-13)
    members = [1, 4, 6]
    expected = np.linalg.slogdet(matrix[np.ix_(members, members)])[1] - np.linalg.slogdet(np.eye(7) + matrix)[1]
    row = np.array([[1, 4, 6, -1, -1, -1, -1]])
    assert abs(log_p_of_subsets(kernel, row, None)[0] - expected) < 1e-12


items_likelihood = jax.jit(lambda k, items, index: log_likelihood(k, OnItems(items, index), None), static_argnames=())


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(7)), st.permutations(range(3)))
def test_order_of_items_and_of_sets_does_not_matter(order, set_order):
    with jax.enable_x64(True):
        sets = [[0, 3, 5], [], [1, 2, 4, 6]]
        index = np.full((3, 8), -1)
        for t, members in enumerate(sets):
            index[t, : len(members)] = members
        reference = items_likelihood(KERNELS["diagonal"], ITEMS, index)[0].lower
        renamed = np.argsort(order)  # item i stands at renamed[i]
        shuffled = np.full((3, 8), -1)
        for t, source in enumerate(set_order):
            members = [renamed[i] for i in sets[source]][::-1]
            shuffled[t, 8 - len(members) :] = members  # and the padding comes first
        got = items_likelihood(KERNELS["diagonal"], ITEMS[list(order)], shuffled)[0].lower
        assert abs(float(got - reference)) < 1e-11


def test_lost_digits_are_flagged():
    items = np.vstack([ITEMS, ITEMS[0] + 1e-7])
    kernel = KERNELS["diagonal"]
    apart, together = np.array([[0, 1, 2, -1, -1, -1, -1, -1]]), np.array([[0, 1, 7, -1, -1, -1, -1, -1]])
    bounds, lost = items_likelihood(kernel, items, apart)
    assert np.isfinite(float(bounds.lower))
    assert not bool(lost)
    assert bool(items_likelihood(kernel, items, together)[1])
    # the same points twice have no likelihood at all
    twice = np.vstack([ITEMS, ITEMS[0]])
    bounds, lost = items_likelihood(kernel, twice, together)
    assert bool(lost)
    k = similarity_matrix(kernel, jnp.array(items))
    values, flags = log_det_items(kernel, jnp.array(items), jnp.array(np.vstack([apart, together])), k)
    assert np.asarray(flags).tolist() == [False, True]
    assert np.isfinite(float(values[0]))
    # a k-DPP whose normaliser is round-off
    x = np.linspace(0, 1, 40)[:, None]
    flat = Gaussian(sigma=jnp.array(0.09))
    assert not bool(log_z_items(flat, jnp.array(x), 5)[1])
    assert bool(log_z_items(flat, jnp.array(x), 15)[1])
    assert float(log_esp_of_matrix(l_matrix(flat, jnp.array(x)), 15)[1]) > 1e-8


# ------------------------------------------------------------------ points: integrals over all configurations


def configurations(x, w, most, low=0):
    """All sets of 0 … most distinct nodes, padded, and their weights: what an integral over sets needs, n! included."""
    index = np.full((sum(comb(len(x), n) for n in range(low, most + 1)), most), -1)
    rows = chain.from_iterable(combinations(range(len(x)), n) for n in range(low, most + 1))
    weights = np.ones(len(index))
    for t, members in enumerate(rows):
        index[t, : len(members)] = members
        weights[t] = np.prod(w[list(members)])
    mask = index >= 0
    return np.where(mask, x[index], 0.5)[..., None], mask, weights


@jax.jit
def real_terms(kernel, points, mask):
    return log_det_real_space(kernel, points, mask)


@partial(jax.jit, static_argnums=1)
def real_log_z(kernel, size):
    return log_z_real_space(kernel, 1, size)


@cache
def real_nodes():
    x, w = nodes(38, -5.8, 5.8)
    return configurations(x, w, 3)


def test_probabilities_of_all_patterns_on_the_line_sum_to_one():
    points, mask, weights = real_nodes()
    kernel = ContinuousGaussian(alpha=jnp.array(0.02), rho=jnp.array(1.1), sigma=jnp.array(0.9))
    terms, lost = real_terms(kernel, jnp.array(points), jnp.array(mask))
    log_z = float(real_log_z(kernel, None))
    total = np.sum(weights * np.exp(np.asarray(terms) - log_z))
    assert abs(total - 1) < 1e-9  # four points have probability 1e-14
    assert not np.asarray(lost).any()
    assert abs(np.sum(weights * np.exp(np.asarray(terms))) - 1) > 1e-3  # without log Z
    # the same numbers through the density's own machinery
    observed = OnRealSpace(jnp.array(points), jnp.array(mask))
    whole = float(jax.jit(lambda k, o: log_likelihood(k, o, None))(kernel, observed)[0].lower)
    assert abs(whole - (np.sum(np.asarray(terms)) - len(terms) * log_z)) < 1e-9 * abs(whole)


def test_probabilities_of_all_pairs_on_the_line_sum_to_one():
    points, mask, weights = real_nodes()
    kernel = ContinuousGaussian(alpha=jnp.array(3.0), rho=jnp.array(1.1), sigma=jnp.array(0.9))
    terms, _ = real_terms(kernel, jnp.array(points), jnp.array(mask))
    for size in (1, 2, 3):
        chosen = mask.sum(axis=1) == size
        log_z = float(real_log_z(kernel, size))
        assert abs(np.sum(weights[chosen] * np.exp(np.asarray(terms)[chosen] - log_z)) - 1) < 1e-9


@cache
def window_nodes():
    x, w = nodes(20, 0.0, 1.0)
    points, mask, weights = configurations(x, w, 3)
    patterns = [p[m] for p, m in zip(points, mask, strict=True)]
    data = dpp.PointPatterns.from_arrays(patterns, window=dpp.Box([0], [1]))
    with jax.enable_x64(True):
        return data, jax.tree.map(jnp.asarray, window.prepare(data)), weights


stationary_terms = jax.jit(window.stationary_terms)


def test_probabilities_of_all_patterns_in_a_window_sum_to_one():
    _, windowed, weights = window_nodes()
    # a process of E|A| = .06 in one table and one of .03 in another: four points have probability 1e-9 and less
    for intensity, sigma in ((0.06, 0.15), (0.03, 0.8)):
        kernel = Stationary(intensity=jnp.array(intensity), sigma=jnp.array(sigma))
        terms, log_fredholm, _ = stationary_terms(kernel, windowed)
        p = weights * np.exp(np.asarray(terms) + float(log_fredholm[0]))
        assert abs(np.nansum(p) - 1) < 1e-7
        assert abs(np.sum(p * np.asarray(windowed.mask).sum(1)) - intensity) < 1e-6  # and E|A| is the intensity
        assert abs(np.sum(weights * np.exp(np.asarray(terms))) - 1) > 1e-2


def test_probabilities_of_all_patterns_of_the_uniform_model_sum_to_one():
    data, windowed, weights = window_nodes()
    counts = data.counts
    kernel = Uniform(alpha=jnp.array(0.05), sigma=jnp.array(0.3))
    terms, _ = jax.jit(log_det_points)(kernel, jnp.array(data.points), jnp.array(data.mask))
    log_z = float(jax.jit(window.uniform_log_normalizer)(kernel, windowed)[0])
    assert abs(np.sum(weights * np.exp(np.asarray(terms) - log_z)) - 1) < 1e-8
    pairs = counts == 2
    windowed = jax.tree.map(jnp.asarray, window.prepare(data, with_functions=False, with_panels=False))
    value = jax.jit(lambda k, w: log_likelihood(k, w, 2)[0].lower)  # Σ_t log det L_A - T log e_2
    log_z = (np.sum(np.asarray(terms)) - float(value(kernel, windowed))) / len(terms)
    assert abs(np.sum(weights[pairs] * np.exp(np.asarray(terms)[pairs] - log_z)) - 1) < 1e-10


def test_order_padding_and_number_of_points_do_not_matter():
    rng = np.random.default_rng(3)
    points = rng.normal(size=(5, 2))
    kernel = ContinuousGaussian(alpha=jnp.array(30.0), rho=jnp.array(1.0), sigma=jnp.array(0.2))
    expected = np.linalg.slogdet(np.array([[_continuous(30.0, 1.0, 0.2, x, y) for x in points] for y in points]))[1]
    for n in (5, 8):
        padded = np.full((2, n, 2), 99.0)
        mask = np.zeros((2, n), bool)
        where = rng.permutation(n)[:5]
        padded[0, where], mask[0, where] = points[rng.permutation(5)], True
        terms, lost = log_det_points(kernel, jnp.array(padded), jnp.array(mask))
        assert abs(float(terms[0]) - expected) < 1e-11
        assert float(terms[1]) == 0.0  # the empty set
        assert not np.asarray(lost).any()


def _continuous(alpha, rho, sigma, x, y):
    quality = (np.pi * rho**2) ** (-len(x) / 2) * np.exp(-(x @ x + y @ y) / (2 * rho**2))
    return alpha * quality * np.exp(-np.sum((x - y) ** 2) / (2 * sigma**2))


# ------------------------------------------------------------------ derived quantities


def test_sizes_and_moments_on_items_by_enumeration():
    index = all_subsets(7, range(8))
    p = np.exp(log_p_of_subsets(KERNELS["amplitude"], index, None))
    counts = (index >= 0).sum(axis=1)
    squares = np.array([np.sum(ITEMS[row[row >= 0]] ** 2, axis=0) for row in index])
    model = dpp.gaussian(dpp.Subsets.from_lists([[0, 1], [2, 3, 4]], ITEMS), amplitude="learn")
    draws = {"alpha": np.array([4.2]), "gamma": np.array([[1.5, 3.0]]), "sigma": np.array([[0.7, 0.7]])}
    found = item_moments(model, draws)
    mean, variance = p @ counts, p @ counts**2 - (p @ counts) ** 2
    np.testing.assert_allclose(found["mean"][0], mean, rtol=1e-11)
    np.testing.assert_allclose(found["variance"][0], variance, rtol=1e-11)
    np.testing.assert_allclose(found["second"][0], p @ squares, rtol=1e-11)
    derived = derive(model, draws)
    np.testing.assert_allclose(derived["expected_size"][0], mean, rtol=1e-11)
    np.testing.assert_allclose(derived["regularity"][0], 1 - variance / mean, rtol=1e-10)
    np.testing.assert_allclose(derived["repulsion"][0], np.sqrt([0.7 / 1.5, 0.7 / 3.0]), rtol=1e-14)


def test_sizes_and_moments_on_real_space_by_quadrature():
    rho, sigma, alpha = np.array([0.7, 1.1]), np.array([0.5, 0.8]), 6.0
    axes = [nodes(40, -5.5 * r, 5.5 * r) for r in rho]
    x = np.stack(np.meshgrid(*[a for a, _ in axes], indexing="ij"), -1).reshape(-1, 2)
    w = np.multiply.outer(axes[0][1], axes[1][1]).ravel()
    q = np.sqrt(alpha) * np.prod((np.pi * rho**2) ** -0.25 * np.exp(-(x**2) / (2 * rho**2)), axis=1)
    root = np.sqrt(w) * q
    matrix = root[:, None] * np.exp(-0.5 * np.sum(((x[:, None] - x) / sigma) ** 2, -1)) * root
    marginal = np.eye(len(x)) - np.linalg.inv(np.eye(len(x)) + matrix)
    inclusion = np.diagonal(marginal)
    data = dpp.PointPatterns.from_arrays([np.array([[0.1, 0.0], [0.9, -1.0]]), np.array([[-0.3, 0.4]])])
    model = dpp.gaussian(data, center="origin")
    draws = {"alpha": np.array([alpha]), "rho": rho[None], "sigma": sigma[None]}
    derived, found = derive(model, draws), moments(model, draws)
    assert found is not None
    mean, variance = np.sum(inclusion), np.sum(inclusion) - np.sum(marginal**2)
    np.testing.assert_allclose(derived["expected_size"][0], mean, rtol=1e-8)
    np.testing.assert_allclose(derived["regularity"][0], 1 - variance / mean, rtol=1e-7)
    np.testing.assert_allclose(derived["repulsion"][0], sigma / rho, rtol=1e-14)
    second = [found[name]["predicted"][0] for name in ("E Σx²", "E Σy²")]
    np.testing.assert_allclose(second, inclusion @ x**2, rtol=1e-7)
    assert found["E|A|"]["observed"] == 1.5


def test_stationary_sizes_by_quadrature():
    boxes = [dpp.Box([0, 0], [1, 1]), dpp.Box([0, 0], [2, 0.5])]
    rng = np.random.default_rng(5)
    data = dpp.PointPatterns.from_arrays([rng.uniform(size=(4, 2)) * b.lengths for b in boxes], windows=boxes)
    model = dpp.stationary(data)
    intensity, repulsion = 12.0, 0.8
    sigma = np.sqrt(repulsion / (2 * np.pi * intensity))
    draws = {"intensity": np.array([intensity]), "repulsion": np.array([repulsion])}
    sizes = expected_sizes(model, draws)
    assert sizes is not None
    for t, box in enumerate(boxes):
        squared = intensity**2
        for length in box.lengths:
            x, w = nodes(80, 0.0, length)
            squared *= w @ np.exp(-((x[:, None] - x) ** 2) / sigma**2) @ w
        np.testing.assert_allclose(sizes.mean[0, t], intensity * box.volume, rtol=1e-13)
        np.testing.assert_allclose(sizes.variance[0, t], intensity * box.volume - squared, rtol=1e-10)
    derived = derive(model, draws)
    np.testing.assert_allclose(derived["sigma"], sigma, rtol=1e-13)
    # the pair correlation 1 - exp(-r²/σ²) reaches .95 at the range
    np.testing.assert_allclose(1 - np.exp(-((derived["range"] / sigma) ** 2)), 0.95, rtol=1e-13)
    assert not np.isclose(1 - np.exp(-((1.2 * sigma / sigma) ** 2)), 0.95, rtol=1e-3)
    np.testing.assert_allclose(derived["expected_size"], intensity * 1.0, rtol=1e-13)


def test_range_and_intensity_of_the_uniform_model():
    rng = np.random.default_rng(6)
    data = dpp.PointPatterns.from_arrays([rng.uniform(size=(5, 2))], window=dpp.Box([0, 0], [1, 1]))
    model = dpp.uniform(data, isotropic=True)
    alphas, sigma = np.array([3.0, 300.0, 30000.0]), 0.08
    derived = derive(model, {"alpha": alphas, "sigma": np.full(3, sigma)})
    scale = 2 * np.pi * sigma**2
    # -Li_1(-v) = log(1 + v) in two dimensions
    np.testing.assert_allclose(derived["intensity"], np.log1p(alphas * scale) / scale, rtol=1e-10)
    np.testing.assert_allclose(derived["repulsion"], sigma * np.sqrt(derived["intensity"]), rtol=1e-13)
    k, w = nodes(600, 0.0, 12 / sigma)
    for alpha, reach in zip(alphas, derived["range"], strict=True):
        phi = alpha * scale * np.exp(-(sigma**2) * k**2 / 2)
        marginal = [np.sum(w * k * special.j0(k * r) * phi / (1 + phi)) for r in (0.0, reach)]
        assert abs((marginal[1] / marginal[0]) ** 2 - 0.05) < 1e-4
    np.testing.assert_allclose(interior_occupation(np.array([0.7]), 2), np.log1p(0.7), rtol=1e-12)


# ------------------------------------------------------------------ priors


PAIR = [np.array([[0.1, 0.2], [0.4, 0.6], [0.9, 0.3]]), np.array([[0.5, 0.5]])]
UNIT = dpp.Box([0, 0], [1, 1])


def median_and_sd(prior):
    return np.exp(np.asarray(prior.loc)), np.asarray(prior.scale)


def test_default_priors_by_hand():
    data = dpp.PointPatterns.from_arrays(PAIR, windows=[UNIT, dpp.Box([0, 0], [1, 3])])
    n, area = 2.0, 2.0  # mean count of 3 and 1, mean area of 1 and 3
    # nearest neighbours within the first pattern: .5, .5, √(.25 + .09); the second has one point only
    d = 0.5
    # about the windows' centres (.5, .5) and (.5, 1.5)
    dx, dy = np.array([-0.4, -0.1, 0.4, 0.0]), np.array([-0.3, 0.1, -0.2, -1.0])
    s = np.sqrt([np.mean(dx**2), np.mean(dy**2)])
    pooled = np.sqrt(np.mean(s**2))

    stationary = dpp.stationary(data).priors
    assert list(stationary) == ["intensity", "repulsion"]
    np.testing.assert_allclose(median_and_sd(stationary["intensity"]), (n / area, 0.5), rtol=1e-12)
    assert (float(stationary["repulsion"].low), float(stationary["repulsion"].high)) == (0.0, 1.0)

    gaussian = dpp.gaussian(data).priors
    assert list(gaussian) == ["alpha", "rho", "sigma"]
    np.testing.assert_allclose(median_and_sd(gaussian["alpha"]), (4 * n, 2.0), rtol=1e-12)
    np.testing.assert_allclose(median_and_sd(gaussian["rho"]), (np.sqrt(2) * s, [0.5, 0.5]), rtol=1e-12)
    np.testing.assert_allclose(median_and_sd(gaussian["sigma"]), ([d, d], [1.0, 1.0]), rtol=1e-12)
    isotropic = dpp.gaussian(data, isotropic=True).priors
    np.testing.assert_allclose(median_and_sd(isotropic["rho"]), (np.sqrt(2) * pooled, 0.5), rtol=1e-12)

    uniform = dpp.uniform(data, isotropic=True).priors
    np.testing.assert_allclose(median_and_sd(uniform["alpha"]), (4 * n / area, 2.0), rtol=1e-12)
    np.testing.assert_allclose(median_and_sd(uniform["sigma"]), (d, 1.0), rtol=1e-12)

    fixed_size = dpp.gaussian(dpp.PointPatterns.from_arrays(PAIR[:1]), size=3, isotropic=True).priors
    assert list(fixed_size) == ["rho", "sigma"]  # alpha cancels


def test_default_priors_on_items_by_hand():
    items = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [0.01, 0.0]])
    data = dpp.Subsets.from_lists([[0, 1, 2], [3]], items)
    n, count = 2.0, 5
    d = 1.0  # neighbours within the first set: 1, 1, 2; item 4 was never chosen and does not count
    s = np.sqrt([(0 + 1 + 0 + 9) / 4, (0 + 0 + 4 + 1) / 4])
    priors = dpp.gaussian(data, amplitude="learn").priors
    np.testing.assert_allclose(median_and_sd(priors["gamma"]), (2 * s**2, [1.0, 1.0]), rtol=1e-12)
    np.testing.assert_allclose(median_and_sd(priors["sigma"]), ([d**2, d**2], [2.0, 2.0]), rtol=1e-12)
    np.testing.assert_allclose(median_and_sd(priors["alpha"]), (4 * n / count, 2.0), rtol=1e-12)
    assert "alpha" not in dpp.gaussian(data).priors


def test_where_no_set_has_two_points_the_spread_gives_the_scale():
    data = dpp.PointPatterns.from_arrays([np.array([[0.0]]), np.array([[2.0]])])
    priors = dpp.gaussian(data, isotropic=True).priors  # centroid 1, s = 1, n = 1
    np.testing.assert_allclose(median_and_sd(priors["sigma"]), (1.0, 1.0), rtol=1e-12)


def test_prior_overrides():
    data = dpp.PointPatterns.from_arrays(PAIR, window=UNIT)
    model = dpp.gaussian(data, priors={"sigma[1]": dist.HalfNormal(2.0), "sigma": dist.Gamma(2.0, 3.0)})
    own = model.priors["sigma"]
    assert isinstance(own, tuple)
    assert isinstance(own[0], dist.Gamma)
    assert isinstance(own[1], dist.HalfNormal)
    params, log_prior = constrain(model.problem.priors, jnp.zeros(model.dimension))
    expected = sum(
        float(np.sum(prior.log_prob(np.ones(shape))))  # exp(0) = 1, and its log-Jacobian is 0
        for prior, shape in ((model.priors["alpha"], ()), (model.priors["rho"], 2), (own[0], ()), (own[1], ()))
    )
    assert abs(float(log_prior) - expected) < 1e-12
    np.testing.assert_array_equal(params["sigma"], [1.0, 1.0])
    for key in ("sigm", "sigma[2]", "alpha[0]", "sigma[x]", "gamma"):
        with pytest.raises(InputError, match="prior " + key.replace("[", r"\[")) as error:
            dpp.gaussian(data, priors={key: dist.HalfNormal(1.0)})
        assert "\n" not in str(error.value)


def test_the_prior_set_of_the_paper():
    data = dpp.PointPatterns.from_arrays(PAIR, window=UNIT)
    model = dpp.gaussian(data, prior_set="paper")
    assert all(isinstance(prior, dist.InverseGamma) for prior in model.priors.values())
    with pytest.raises(InputError, match="--prior-set: expected default or paper, found flat"):
        dpp.gaussian(data, prior_set="flat")


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6))
def test_constrain_and_unconstrain_are_inverse_and_the_jacobian_is_right(numbers):
    with jax.enable_x64(True):
        priors = {
            "intensity": dist.LogNormal(0.3, 0.5),
            "repulsion": dist.Uniform(0.0, 1.0),
            "sigma": dist.LogNormal(jnp.zeros(2), jnp.ones(2)),
            "w": (dist.Beta(2.0, 3.0), dist.Normal(1.0, 2.0)),
        }
        z = jnp.array(numbers)
        params, log_prior = constrain(priors, z)
        np.testing.assert_allclose(unconstrain(priors, params), z, atol=1e-10)

        def flat(z):
            values = constrain(priors, z)[0]
            return jnp.concatenate([jnp.ravel(values[name]) for name in priors])

        h = 1e-6
        volume = np.linalg.slogdet([(flat(z + h * e) - flat(z - h * e)) / (2 * h) for e in np.eye(6)])[1]
        prior_alone = float(
            priors["intensity"].log_prob(params["intensity"])
            + jnp.sum(priors["sigma"].log_prob(params["sigma"]))
            + sum(p.log_prob(v) for p, v in zip(priors["w"], params["w"], strict=True))
        )
        assert abs(float(log_prior) - (prior_alone + volume)) < 1e-7
        assert abs(volume) < 1e-3 or abs(float(log_prior) - prior_alone) > 1e-7  # it is not left out


def test_log_density_adds_prior_jacobian_and_likelihood():
    data = dpp.Subsets.from_lists([[0, 3], [1, 2, 5], []], ITEMS)
    model = dpp.gaussian(data)
    z = jnp.log(jnp.array([1.5, 0.4, 0.7, 0.2]))
    bounds, lost = jax.jit(log_density)(model.problem, z)
    q = np.exp(-0.5 * np.sum(ITEMS**2 / [1.5, 0.4], axis=1))
    squared = np.sum((ITEMS[:, None] - ITEMS) ** 2 / [0.7, 0.2], axis=-1)
    matrix = q[:, None] * np.exp(-0.5 * squared) * q
    expected = -3 * np.linalg.slogdet(np.eye(7) + matrix)[1]
    for members in ([0, 3], [1, 2, 5]):
        expected += np.linalg.slogdet(matrix[np.ix_(members, members)])[1]
    # a log-normal is a normal in z
    for name, part in (("gamma", np.log([1.5, 0.4])), ("sigma", np.log([0.7, 0.2]))):
        loc, scale = np.asarray(model.priors[name].loc), np.asarray(model.priors[name].scale)
        expected += np.sum(-0.5 * ((part - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi))
    assert abs(float(bounds.lower) - expected) < 1e-10
    assert float(bounds.lower) == float(bounds.upper)
    assert not bool(lost)
    far = jax.jit(log_density)(model.problem, jnp.full(4, 1e4))
    assert float(far[0].lower) == -np.inf  # what is not finite has density 0


@pytest.mark.parametrize(
    ("sigma", "golden"), [((0.1, 0.2), 57.84974369933), ((0.01, 0.02), 212.07731415135), ((0.001, 0.002), 759.49809803)]
)
def test_golden_normaliser_on_3600_items(sigma, golden):
    axis = np.linspace(-0.5, 0.5, 60)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_z = jax.jit(lambda s: log_z_items(Gaussian(gamma=jnp.array([0.5, 0.5]), sigma=s), grid, None)[0])
    assert abs(float(log_z(jnp.array(sigma))) - golden) < 1e-8

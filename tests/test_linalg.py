"""Masked log-determinants, log elementary symmetric polynomials and volumes, against mpmath and plain NumPy."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpplearn.linalg import SMALLEST_PIVOT, log_det, log_esp, log_esp_of_matrix, log_tilt, log_volume
from dpplearn.normalizer import LARGEST_ROUND_OFF

DIGITS = 60
SPREAD = np.random.default_rng(3).permutation(np.logspace(-15, 15, 60))  # thirty orders of magnitude


def exact_esp(eigenvalues, size):
    """e_0 … e_size in mpmath: raw, but with digits and exponents to spare."""
    with mp.workdps(DIGITS):
        e = [mp.mpf(1)] + [mp.mpf(0)] * size
        for value in map(mp.mpf, map(float, eigenvalues)):
            for j in range(size, 0, -1):
                e[j] += value * e[j - 1]
        return e


def exact_log_esp(eigenvalues, size):
    with mp.workdps(DIGITS):
        return float(mp.log(exact_esp(eigenvalues, size)[size]))


def exact_gradient(eigenvalues, size):
    """∂ log e_k/∂λ_i = e_{k-1}(λ without i) / e_k."""
    with mp.workdps(DIGITS):
        whole = exact_esp(eigenvalues, size)[size]
        return np.array(
            [float(exact_esp(np.delete(eigenvalues, i), size - 1)[size - 1] / whole) for i in range(len(eigenvalues))]
        )


value = jax.jit(log_esp, static_argnums=1)
gradient = jax.jit(jax.grad(log_esp), static_argnums=1)


def raw_esp(eigenvalues, size):
    """The textbook recursion on raw numbers, in float64."""
    e = np.zeros(size + 1)
    e[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for v in eigenvalues:
            e[1:] = e[1:] + v * e[:-1]
    return e


def downdated_gradient(eigenvalues, size):
    """e_{k-1}(λ without i) by f_j = e_j - λ_i f_{j-1}: right on paper only."""
    e = raw_esp(eigenvalues, size)
    result = []
    with np.errstate(over="ignore", invalid="ignore"):
        for v in eigenvalues:
            f = 1.0
            for j in range(1, size):
                f = e[j] - v * f
            result.append(f / e[size])
    return np.array(result)


def log_recursion(eigenvalues, size):
    """The recursion in logaddexp, which starts at log 0: plain autodiff cannot pass there."""

    def add(row, v):
        shifted = jnp.concatenate([jnp.full(1, -jnp.inf), row[:-1]])
        return jnp.logaddexp(row, jnp.log(v) + shifted), None

    return jax.lax.scan(add, jnp.full(size + 1, -jnp.inf).at[0].set(0.0), eigenvalues)[0][size]


# ------------------------------------------------------------------ log e_k


def test_log_esp_of_many_equal_eigenvalues():
    n, k = 2000, 300
    with mp.workdps(40):
        expected = float(mp.log(mp.binomial(n, k)) + k * mp.log(5))
    assert abs(float(value(jnp.full(n, 5.0), k)) - expected) < 1e-10
    assert not np.isfinite(raw_esp(np.full(n, 5.0), k)[k])  # the raw recursion overflows here


@pytest.mark.parametrize("size", [1, 5, 20, 40, 59, 60])
def test_log_esp_over_thirty_orders_of_magnitude(size):
    assert abs(float(value(jnp.array(SPREAD), size)) - exact_log_esp(SPREAD, size)) < 1e-10


def test_zeros_do_not_count_and_too_few_positive_eigenvalues_give_zero():
    positive = np.array([3.0, 0.2, 7.0, 1e-9, 40.0])
    padded = np.concatenate([[0.0, 0.0], positive, np.zeros(5)])
    for size in (1, 3, 5):
        assert abs(float(value(jnp.array(padded), size)) - exact_log_esp(positive, size)) < 1e-12
    assert float(value(jnp.array(padded), 6)) == -np.inf
    assert float(value(jnp.zeros(12), 2)) == -np.inf
    assert float(value(jnp.array(positive), 6)) == -np.inf  # more than there are eigenvalues


def test_the_tilt_makes_the_expected_size():
    for eigenvalues, size in ((SPREAD, 20), (np.full(60, 1e-12), 59), (np.geomspace(1e-200, 1e200, 60), 30)):
        scaled = np.exp(float(log_tilt(jnp.array(eigenvalues), size)) + np.log(eigenvalues))
        assert abs(np.sum(scaled / (1 + scaled)) - size) <= 0.0101


@pytest.mark.parametrize("size", [1, 5, 20, 59, 60])
def test_gradient_is_the_leave_one_out_ratio(size):
    expected = exact_gradient(SPREAD, size)
    np.testing.assert_allclose(gradient(jnp.array(SPREAD), size), expected, rtol=1e-10)
    if size in (20, 59):  # the same assertion catches the downdate
        error = np.abs(downdated_gradient(SPREAD, size) / expected - 1)
        assert not np.max(error) < 1e10


@pytest.mark.parametrize("size", [2, 5])
def test_gradient_at_zero_and_repeated_eigenvalues(size):
    eigenvalues = np.array([0.0, 2.0, 2.0, 2.0, 0.0, 1e-30, 5.0, 5.0, 1e-8, 0.3])
    expected = exact_gradient(eigenvalues, size)
    np.testing.assert_allclose(gradient(jnp.array(eigenvalues), size), expected, rtol=1e-12)
    assert np.isfinite(expected).all()
    assert expected[0] > 0  # a zero eigenvalue still has a slope
    # the recursion in the log domain has the right value there, and no derivative
    assert abs(float(log_recursion(jnp.array(eigenvalues), size)) - exact_log_esp(eigenvalues, size)) < 1e-10
    assert np.isnan(np.asarray(jax.grad(log_recursion)(jnp.array(eigenvalues), size))).any()


eigenvalue_lists = st.lists(st.floats(-12.0, 12.0).map(lambda x: 10.0**x), min_size=9, max_size=9)


@settings(deadline=None, max_examples=60)
@given(eigenvalue_lists, st.floats(1e-6, 1e6), st.randoms(use_true_random=False))
def test_log_esp_is_homogeneous_symmetric_and_its_gradient_obeys_euler(eigenvalues, factor, random):
    with jax.enable_x64(True):
        x, size = jnp.array(eigenvalues), 4
        here = float(value(x, size))
        tolerance = 1e-11 * (1 + abs(here))
        assert abs(here - exact_log_esp(eigenvalues, size)) < tolerance
        assert abs(float(value(x * factor, size)) - here - size * np.log(factor)) < 10 * tolerance
        random.shuffle(eigenvalues)
        assert abs(float(value(jnp.array(eigenvalues), size)) - here) < tolerance
        assert abs(float(jnp.sum(x * gradient(x, size))) - size) < 1e-11  # Σ λ_i ∂log e_k/∂λ_i = k


def test_all_sizes_together_make_the_dpp_normaliser():
    eigenvalues = np.array([0.3, 2.0, 11.0, 0.05, 0.7, 4.0])
    total = 1 + sum(np.exp(float(value(jnp.array(eigenvalues), k))) for k in range(1, 7))
    np.testing.assert_allclose(total, np.prod(1 + eigenvalues), rtol=1e-13)


# ------------------------------------------------------------------ log e_k of a matrix


GRID = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, 10)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)


def grid_kernel(theta):
    """The paper's kernel on the 10×10 grid, isotropic, so that its eigenvalues repeat; theta = log(gamma, sigma)."""
    gamma, sigma = jnp.exp(theta)
    q = jnp.exp(-0.5 * jnp.sum(jnp.array(GRID) ** 2, axis=1) / gamma)
    squared = jnp.sum((jnp.array(GRID)[:, None] - jnp.array(GRID)) ** 2, axis=-1)
    return q[:, None] * jnp.exp(-0.5 * squared / sigma) * q


THETA = np.log([0.5, 0.05])


def test_log_esp_of_matrix_on_a_grid_with_repeated_eigenvalues():
    size = 5
    kernel = grid_kernel(jnp.array(THETA))
    eigenvalues = np.linalg.eigvalsh(np.asarray(kernel))
    assert np.sum(np.abs(np.diff(eigenvalues[-20:])) < 1e-12) >= 4  # they do repeat

    @jax.jit
    def f(theta):
        return log_esp_of_matrix(grid_kernel(theta), size)[0]

    assert abs(float(f(jnp.array(THETA))) - exact_log_esp(np.maximum(eigenvalues, 0), size)) < 1e-10
    h = 1e-4
    steps = h * np.eye(2)
    numeric = [float(f(THETA + e) - f(THETA - e)) / (2 * h) for e in steps]
    slope = jax.jit(jax.grad(f))
    np.testing.assert_allclose(slope(jnp.array(THETA)), numeric, rtol=1e-6)

    # the textbook route differentiates Rayleigh quotients v_iᵀ L v_i through eigh, where eigenvalues repeat
    def through_eigh(matrix):
        vectors = jnp.linalg.eigh(matrix)[1]
        return log_recursion_of_products(jnp.sum(vectors * (matrix @ vectors), axis=0), size)

    exactly_repeated = jnp.diag(jnp.array([2.0, 2.0, 2.0, 1.0, 1.0, 0.5]))
    right = jax.grad(lambda m: log_esp_of_matrix(m, size)[0])(exactly_repeated)
    expected = np.diag(exact_gradient(np.diagonal(exactly_repeated), size))
    np.testing.assert_allclose(right, expected, atol=1e-13)
    assert not np.allclose(np.asarray(jax.grad(through_eigh)(exactly_repeated)), expected, atol=1e-13)


def log_recursion_of_products(eigenvalues, size):
    def add(row, v):
        return row.at[1:].add(v * row[:-1]), None

    return jnp.log(jax.lax.scan(add, jnp.zeros(size + 1).at[0].set(1.0), eigenvalues)[0][size])


@cache
def nearly_flat():
    """40 points on [0, 1] with length .3, whose small eigenvalues lie under round-off; and log e_k by mpmath."""
    x = np.linspace(0, 1, 40)
    matrix = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2)
    with mp.workdps(120):
        exact = mp.matrix(40, 40)
        for i in range(40):
            for j in range(40):
                # the kernel at these float points; only the linear algebra is to lose digits
                exact[i, j] = mp.e ** (-((mp.mpf(float(x[i])) - mp.mpf(float(x[j]))) ** 2) / (2 * mp.mpf("0.09")))
        power, sums = mp.eye(40), []
        for _ in range(20):
            power = power * exact
            sums.append(mp.fsum(power[i, i] for i in range(40)))
        e = [mp.mpf(1)]
        for k in range(1, 21):  # Newton's identities: e_k from the traces of powers
            e.append(mp.fsum((-1) ** (i - 1) * e[k - i] * sums[i - 1] for i in range(1, k + 1)) / k)
        return jnp.array(matrix), {k: float(mp.log(e[k])) for k in (5, 12, 15, 20)}


@pytest.mark.parametrize(("size", "estimate"), [(12, 1.6e-5), (15, 0.11)])
def test_round_off_estimate_covers_the_error(size, estimate):
    matrix, exact = nearly_flat()
    log_e, round_off = log_esp_of_matrix(matrix, size)
    error = abs(float(log_e) - exact[size])
    assert 0.5 * estimate < float(round_off) < 2 * estimate
    assert error < float(round_off)
    assert error > 1e-3 * float(round_off)  # and it is no blanket warning
    assert float(round_off) > LARGEST_ROUND_OFF


def test_round_off_estimate_says_so_where_no_digit_is_right():
    # of first order, it cannot bound the error of a number that is all round-off, but it cannot miss it either
    matrix, exact = nearly_flat()
    log_e, round_off = log_esp_of_matrix(matrix, 20)
    assert abs(float(log_e) - exact[20]) > 10
    assert 19 < float(round_off) < 76


def test_round_off_estimate_is_silent_where_the_digits_are_right():
    matrix, exact = nearly_flat()
    log_e, round_off = log_esp_of_matrix(matrix, 5)
    assert float(round_off) < LARGEST_ROUND_OFF
    assert abs(float(log_e) - exact[5]) < 1e-10


# ------------------------------------------------------------------ log det with masks


def random_matrix(seed, n=6):
    factor = np.random.default_rng(seed).normal(size=(n, n))
    return factor @ factor.T + 0.1 * np.eye(n)


masked_log_det = jax.jit(lambda m, mask: log_det(m, mask)[0])
masked_gradient = jax.jit(jax.grad(lambda m, mask: log_det(m, mask)[0]))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.booleans(), min_size=6, max_size=6), st.floats(-1e6, 1e6))
def test_log_det_of_the_masked_rows_only(seed, mask, rubbish):
    with jax.enable_x64(True):
        matrix, mask = random_matrix(seed), np.array(mask)
        inner = matrix[np.ix_(mask, mask)]
        dirty = np.where(mask[:, None] & mask, matrix, rubbish)
        assert abs(float(masked_log_det(dirty, mask)) - np.linalg.slogdet(inner)[1]) < 1e-9
        slope = np.asarray(masked_gradient(dirty, mask))
        np.testing.assert_allclose(slope[np.ix_(mask, mask)], np.linalg.inv(inner), rtol=1e-7, atol=1e-9)
        assert np.all(slope[~mask] == 0)
        assert np.all(slope[:, ~mask] == 0)


def test_log_det_without_a_mask_and_its_smallest_pivot():
    matrix = random_matrix(1)
    got, pivot = log_det(jnp.array(matrix))
    np.testing.assert_allclose(got, np.linalg.slogdet(matrix)[1], rtol=1e-13)
    np.testing.assert_allclose(pivot, np.min(np.diagonal(np.linalg.cholesky(matrix))) ** 2, rtol=1e-12)
    nearly_singular = np.array([[1.0, 1 - 1e-10], [1 - 1e-10, 1.0]])
    assert float(log_det(jnp.array(nearly_singular))[1]) < SMALLEST_PIVOT


def test_log_det_of_an_indefinite_matrix_is_nan_and_of_no_rows_zero():
    indefinite = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(float(log_det(indefinite)[0]))
    assert np.isnan(float(masked_log_det(np.diag([1.0, -1, 1, 1, 1, 1]), np.ones(6, bool))))
    assert float(masked_log_det(np.diag([1.0, -1, 1, 1, 1, 1]), np.arange(6) != 1)) == 0.0
    assert float(masked_log_det(random_matrix(2), np.zeros(6, bool))) == 0.0


# ------------------------------------------------------------------ volumes of tall matrices


@partial(jax.jit)
def volume_and_gradient(tall):
    return jax.value_and_grad(log_volume)(tall)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_log_volume_and_its_gradient(seed):
    with jax.enable_x64(True):
        tall = np.random.default_rng(seed).normal(size=(9, 4))
        got, slope = volume_and_gradient(tall)
        assert abs(float(got) - np.linalg.slogdet(tall.T @ tall)[1]) < 1e-10
        np.testing.assert_allclose(slope, 2 * np.linalg.pinv(tall).T, rtol=1e-8, atol=1e-10)


def test_log_volume_keeps_digits_that_the_gram_matrix_loses():
    # rows fall off over sixteen orders of magnitude, as those of a flat kernel do
    tall = np.geomspace(1, 1e-16, 9)[:, None] * np.random.default_rng(5).normal(size=(9, 6))
    with mp.workdps(80):
        exact_tall = mp.matrix(tall.tolist())
        exact = float(mp.log(mp.det(exact_tall.T * exact_tall)))
    assert abs(float(log_volume(jnp.array(tall))) - exact) < 1e-10
    sign, by_gram = np.linalg.slogdet(tall.T @ tall)
    assert not (sign > 0 and abs(by_gram - exact) < 1e-3)

"""Spectra of the continuous models against mpmath, direct sums and dense quadrature, all written anew here."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special

from dpplearn.data import PointPatterns
from dpplearn.domains import Box
from dpplearn.kernels import ContinuousGaussian, Stationary, Uniform
from dpplearn.likelihood import log_det_real_space
from dpplearn.model.density import log_likelihood
from dpplearn.model.derived import interior_occupation
from dpplearn.spectra import interval, real_space, window

# ------------------------------------------------------------------ references


def nodes(count, low, high):
    """Gauss–Legendre nodes and weights on [low, high]."""
    t, w = special.roots_legendre(count)
    return low + (t + 1) * (high - low) / 2, w * (high - low) / 2


def printed_spectrum(gamma):
    """c and r of E5 for one dimension, γ = (σ/ρ)²: λ_n = α c r^n, degrees from 0."""
    gamma = mp.mpf(gamma)
    beta2 = mp.sqrt(1 + 2 / gamma)
    return mp.sqrt(1 / ((beta2 + 1) / 2 + 1 / (2 * gamma))), 1 / (gamma * (beta2 + 1) + 1)


def power_sum_reference(alpha, rho, sigma, m):
    """Σ λ^m over all modes, in mpmath; rho and sigma with one entry per dimension."""
    total = mp.mpf(alpha) ** m
    for r, s in zip(rho, sigma, strict=True):
        c, ratio = printed_spectrum((mp.mpf(s) / mp.mpf(r)) ** 2)
        total *= c**m / (1 - ratio**m)
    return total


def log_esp_reference(alpha, rho, sigma, size):
    """log e_k by Newton's identities from the closed power sums: nothing is truncated."""
    with mp.workdps(2500):
        sums = [power_sum_reference(alpha, rho, sigma, m) for m in range(1, size + 1)]
        e = [mp.mpf(1)]
        for k in range(1, size + 1):
            e.append(mp.fsum((-1) ** (i - 1) * e[k - i] * sums[i - 1] for i in range(1, k + 1)) / k)
        return mp.log(e[size])


def log_z_reference(alpha, rho, sigma):
    """Σ log(1 + λ) one eigenvalue after the other; equal scales share levels with multiplicities."""
    dim = len(rho)
    pairs = [tuple(map(float, printed_spectrum((mp.mpf(s) / mp.mpf(r)) ** 2))) for r, s in zip(rho, sigma, strict=True)]
    top = alpha * np.prod([c for c, _ in pairs])
    counts = [int(np.ceil((45 + np.log(max(alpha, 1))) / -np.log(r))) + 1 for _, r in pairs]
    if len(set(pairs)) == 1:
        n = np.arange(counts[0] * 2)
        return float(np.sum(special.binom(n + dim - 1, dim - 1) * np.log1p(top * pairs[0][1] ** n)))
    value = top
    for (_, r), n in zip(pairs, counts, strict=True):
        value = np.multiply.outer(value, r ** np.arange(n))
    return float(np.sum(np.log1p(value)))


def log_z_quadrature(alpha, rho, sigma, per_dim):
    """log det(I + L) of the kernel on a tensor of Gauss–Legendre nodes."""
    axes = [nodes(n, -6.5 * r, 6.5 * r) for n, r in zip(per_dim, rho, strict=True)]
    x = np.stack(np.meshgrid(*[a for a, _ in axes], indexing="ij"), -1).reshape(-1, len(rho))
    w = np.ones(1)
    for _, weight in axes:
        w = np.multiply.outer(w, weight).ravel()
    q = np.sqrt(alpha) * np.prod((np.pi * np.square(rho)) ** -0.25 * np.exp(-(x**2) / (2 * np.square(rho))), axis=1)
    squared = np.sum(((x[:, None] - x) / np.asarray(sigma)) ** 2, axis=-1)
    root = np.sqrt(w) * q
    return np.linalg.slogdet(np.eye(len(x)) + root[:, None] * np.exp(-squared / 2) * root)[1]


def real_kernel(alpha, rho, sigma):
    return ContinuousGaussian(alpha=jnp.asarray(alpha), rho=jnp.asarray(rho), sigma=jnp.asarray(sigma))


real_log_z = jax.jit(real_space.log_normalizer, static_argnums=1)
real_log_z_and_gradient = jax.jit(jax.value_and_grad(real_space.log_normalizer), static_argnums=1)
real_log_esp = jax.jit(jax.value_and_grad(real_space.log_normalizer_fixed_size), static_argnums=(1, 2))
real_size = jax.jit(real_space.expected_size, static_argnums=1)


@cache
def side_modes(count, s):
    """Nodes, root weights and eigenpairs of exp(-(x-y)²/2s²) on [0, 1] by a plain dense eigenproblem."""
    x, w = nodes(count, 0.0, 1.0)
    root = np.sqrt(w)
    e, v = np.linalg.eigh(root[:, None] * np.exp(-((x[:, None] - x) ** 2) / (2 * s * s)) * root)
    return x, root, np.maximum(e, 0.0), v


def box_modes(sigma, sides, points):
    """Eigenvalues of exp(-Σ(x-y)²/2σ²) on the box, as a tensor, and e φ at the points per dimension."""
    values, functions = np.ones(()), []
    for d, length in enumerate(sides):
        s = sigma[d] / length
        x, root, e, v = side_modes(int(4 / s) + 30, s)
        keep = e > 1e-19
        values = np.multiply.outer(values, length * e[keep])
        at = np.exp(-((points[:, d, None] / length - x) ** 2) / (2 * s * s)) * root
        functions.append(np.sqrt(length) * (at @ v[:, keep]))
    return values, functions


def stationary_reference(intensity, sigma, sides, points):
    """log det L_A and log det(I - K_W), L = K + K (I-K)⁻¹ K on the modes of the box."""
    values, functions = box_modes([sigma] * len(sides), sides, points)
    kappa = intensity * values
    mixed = functions[0]
    for f in functions[1:]:
        mixed = np.einsum("n...,nj->n...j", mixed, f)
    mixed = mixed.reshape(len(points), -1) * intensity
    kernel = intensity * np.exp(-np.sum((points[:, None] - points) ** 2, -1) / (2 * sigma**2))
    log_det = np.linalg.slogdet(kernel + (mixed / (1 - kappa.ravel())) @ mixed.T)[1]
    return log_det, np.sum(np.log1p(-kappa))


def stationary_by_tensor_quadrature(intensity, sigma, sides, points, count):
    """The same with one big matrix on a tensor of nodes: no separability is used."""
    axes = [nodes(count, 0.0, length) for length in sides]
    x = np.stack(np.meshgrid(*[a for a, _ in axes], indexing="ij"), -1).reshape(-1, len(sides))
    w = np.ones(1)
    for _, weight in axes:
        w = np.multiply.outer(w, weight).ravel()

    def k(a, b):
        return intensity * np.exp(-np.sum((a[:, None] - b) ** 2, -1) / (2 * sigma**2))

    root = np.sqrt(w)
    rest = np.eye(len(x)) - root[:, None] * k(x, x) * root
    across = k(points, x) * root
    log_det = np.linalg.slogdet(k(points, points) + across @ np.linalg.solve(rest, across.T))[1]
    return log_det, np.linalg.slogdet(rest)[1]


def uniform_reference(alpha, sigma, sides):
    """log Z, E|A|, Var|A| of the L-model on a box."""
    values, _ = box_modes(np.broadcast_to(sigma, len(sides)), sides, np.zeros((0, len(sides))))
    scaled = alpha * values
    p = scaled / (1 + scaled)
    return np.sum(np.log1p(scaled)), np.sum(p), np.sum(p * (1 - p))


def spread_points(count, sides):
    """Low-discrepancy points in a box."""
    steps = [0.7548776662, 0.5698402910, 0.3819660113][: len(sides)]
    return (np.arange(1, count + 1)[:, None] * steps) % 1 * np.asarray(sides)


def observed(patterns, with_functions=True, boxes=None):
    boxes = boxes or [Box([0] * patterns[0].shape[1], [1] * patterns[0].shape[1])] * len(patterns)
    data = PointPatterns.from_arrays(patterns, windows=boxes)
    return jax.tree.map(jnp.asarray, window.prepare(data, with_functions))


@jax.jit
def stationary(intensity, sigma, windowed):
    set_terms, log_fredholm, _ = window.stationary_terms(Stationary(intensity=intensity, sigma=sigma), windowed)
    return set_terms, log_fredholm


@jax.jit
def stationary_log_p(intensity, sigma, windowed):
    return log_likelihood(Stationary(intensity=intensity, sigma=sigma), window.BySize((windowed,)), None)[0].lower


GOLDEN = np.stack([(0.7548776662 * np.arange(1, 61)) % 1, (0.5698402910 * np.arange(1, 61)) % 1], axis=1)


@cache
def golden_pattern():
    with jax.enable_x64(True):
        return observed([GOLDEN])


# ------------------------------------------------------------------ golden numbers


def test_golden_eigenvalues():
    spec = real_space.spectrum(real_kernel(5.0, 0.7, 0.3), 1)
    got = np.exp(spec.log_top + np.arange(6) * spec.log_ratio[0])
    expected = [2.24818789, 1.23731813, 0.6809734, 0.37478217, 0.20626602, 0.11352107]
    np.testing.assert_allclose(got, expected, atol=6e-9)
    c, r = printed_spectrum((mp.mpf("0.3") / mp.mpf("0.7")) ** 2)
    np.testing.assert_allclose(got, [float(5 * c * r**n) for n in range(6)], rtol=1e-14)


def test_golden_sizes():
    for params, mean, sd in (((1000.0, 1.0, 1.0), 17.520286, 2.0935), ((100.0, 0.7, 0.05), 82.011732, 8.3043)):
        got_mean, got_variance = real_size(real_kernel(*params), 2)
        assert abs(float(got_mean) - mean) < 6e-7
        assert abs(float(got_variance) ** 0.5 - sd) < 6e-5


def test_golden_box():
    windowed = observed([GOLDEN], with_functions=False)
    kernel = Uniform(alpha=jnp.asarray(300.0), sigma=jnp.asarray(0.08))
    assert abs(float(jax.jit(window.uniform_log_normalizer)(kernel, windowed)[0]) - 122.1104858403) < 1e-10
    assert abs(float(jax.jit(window.uniform_sizes)(kernel, windowed)[0][0]) - 69.2399540) < 6e-8
    strength = np.array([300 * 2 * np.pi * 0.08**2])
    assert abs(interior_occupation(strength, 2)[0] / (2 * np.pi * 0.08**2) - 63.9066432) < 6e-8
    assert abs(-float(mp.polylog(1, -strength[0])) - interior_occupation(strength, 2)[0]) < 1e-12


@pytest.mark.parametrize(("sigma", "log_p"), [(0.04, 196.7894358014), (0.05, 204.1418931383)])
def test_golden_stationary(sigma, log_p):
    assert abs(float(stationary_log_p(60.0, sigma, golden_pattern())) - log_p) < 1e-9
    # K in place of L_A, a likelihood without the window's part, is caught
    kernel = 60.0 * np.exp(-np.sum((GOLDEN[:, None] - GOLDEN) ** 2, -1) / (2 * sigma**2))
    _, log_fredholm = stationary_reference(60.0, sigma, [1, 1], GOLDEN)
    assert abs(np.linalg.slogdet(kernel)[1] + log_fredholm - log_p) > 0.1


# ------------------------------------------------------------------ R^D: normalisers


RATIOS = (1e-3, 0.02, 0.3, 1.0, 50.0)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("ratio", RATIOS)
def test_log_normalizer_is_the_sum_over_all_levels(dim, ratio):
    for alpha in (1e-3, 5.0, 1000.0):
        got = float(real_log_z(real_kernel(alpha, 0.7, 0.7 * ratio), dim))
        expected = log_z_reference(alpha, [0.7] * dim, [0.7 * ratio] * dim)
        assert abs(got - expected) < 1e-10 * max(1.0, expected)


@pytest.mark.parametrize("dim", [2, 3])
def test_isotropic_and_anisotropic_forms_agree(dim):
    for ratio in (0.3, 1.0, 50.0):
        one = float(real_log_z(real_kernel(80.0, 0.7, 0.7 * ratio), dim))
        each = float(real_log_z(real_kernel(80.0, np.full(dim, 0.7), np.full(dim, 0.7 * ratio)), dim))
        assert abs(one - each) < 1e-11 * max(1.0, one)


@pytest.mark.parametrize(
    ("rho", "sigma"),
    [
        ((0.7, 1.3), (0.05, 0.4)),
        ((0.7, 0.7), (0.0007, 35.0)),
        ((0.7, 1.3, 0.4), (0.3, 0.5, 0.2)),
        ((0.7, 0.7, 0.7), (70.0, 0.07, 7.0)),
    ],
)
def test_anisotropic_log_normalizer_is_the_sum_over_all_modes(rho, sigma):
    for alpha in (0.01, 5.0, 300.0):
        got = float(real_log_z(real_kernel(alpha, np.array(rho), np.array(sigma)), len(rho)))
        expected = log_z_reference(alpha, rho, sigma)
        assert abs(got - expected) < 1e-10 * max(1.0, expected)


def test_log_normalizer_is_that_of_dense_quadrature():
    for alpha, rho, sigma in ((5.0, 0.7, 0.3), (100.0, 0.7, 0.05), (1e6, 1.3, 2.0)):
        expected = log_z_quadrature(alpha, [rho], [sigma], [600])
        assert abs(float(real_log_z(real_kernel(alpha, rho, sigma), 1)) - expected) < 1e-9
    expected = log_z_quadrature(400.0, [0.7, 1.0], [1.0, 2.0], [52, 44])
    got = float(real_log_z(real_kernel(400.0, np.array([0.7, 1.0]), np.array([1.0, 2.0])), 2))
    assert abs(got - expected) < 1e-9


@pytest.mark.parametrize(
    ("dim", "rho", "sigma"), [(1, 0.7, 0.01), (2, 0.7, 0.05), (3, 1.0, 1.0), (2, (0.7, 1.3), (0.05, 0.4))]
)
def test_gradient_of_the_log_normalizer(dim, rho, sigma):
    parts = [100.0, np.array(rho), np.array(sigma)]
    value, slope = real_log_z_and_gradient(real_kernel(*parts), dim)
    h = 1e-5
    for i, name in enumerate(("alpha", "rho", "sigma")):
        for component in np.ndindex(np.shape(parts[i])):
            up, down = ([np.array(p, float) for p in parts] for _ in range(2))
            up[i][component] *= 1 + h
            down[i][component] *= 1 - h
            values = [float(real_log_z(real_kernel(*p), dim)) for p in (up, down)]
            numeric = (values[0] - values[1]) / (2 * h * parts[i][component] if np.ndim(parts[i]) else 2 * h * parts[i])
            assert abs(getattr(slope, name)[component] - numeric) < 1e-6 * (1 + abs(numeric) + abs(float(value)))


# ------------------------------------------------------------------ R^D: log e_k


@pytest.mark.parametrize(
    ("size", "rho", "sigma"),
    [
        (1, (0.7,), (0.3,)),
        (77, (0.7,), (0.05,)),
        (30, (0.7,), (2.0,)),  # the tilt makes the largest eigenvalue e^80, whose powers overflow
        (77, (0.7,), (0.6,)),
        (10, (0.7, 0.7), (0.3, 0.3)),
        (77, (0.7, 0.7), (0.05, 0.05)),
        (77, (0.7, 0.7), (0.005, 0.005)),
        (20, (0.7, 1.3), (0.4, 0.1)),
    ],
)
def test_log_esp_on_real_space(size, rho, sigma):
    is_scalar = len(set(zip(rho, sigma, strict=True))) == 1
    form = (lambda x: np.array(x[0])) if is_scalar else np.array
    got, slope = real_log_esp(real_kernel(100.0, form(rho), form(sigma)), len(rho), size)
    expected = log_esp_reference(100, rho, sigma, size)
    assert abs(float(got) - float(expected)) < 1e-11 * (1 + abs(float(expected)))
    if len(rho) == 1:  # one dimension has a closed form too
        c, r = printed_spectrum((mp.mpf(sigma[0]) / mp.mpf(rho[0])) ** 2)
        closed = size * mp.log(100 * c) + size * (size - 1) / 2 * mp.log(r)
        closed -= mp.fsum(mp.log(1 - r**j) for j in range(1, size + 1))
        assert abs(float(got) - float(closed)) < 1e-11 * (1 + abs(float(expected)))
    # 2500 digits make a difference quotient as good as a derivative
    assert abs(float(slope.alpha) - size / 100) < 1e-11
    with mp.workdps(2500):
        h = mp.mpf(10) ** -30
        for d in range(1 if is_scalar else len(rho)):
            moved = [s + h if is_scalar or i == d else mp.mpf(s) for i, s in enumerate(map(mp.mpf, sigma))]
            numeric = float((log_esp_reference(100, rho, moved, size) - expected) / h)
            found = float(np.atleast_1d(slope.sigma)[d])
            assert abs(found - numeric) < 1e-8 * (1 + abs(numeric))


# ------------------------------------------------------------------ R^D: eigenfunctions


def test_hermite_functions_are_orthonormal():
    z, w = nodes(400, -18.0, 18.0)
    psi = np.asarray(real_space.hermite_functions(jnp.array(z), 60))
    np.testing.assert_allclose((psi * w) @ psi.T, np.eye(60), atol=1e-12)


def test_hermite_functions_far_out_and_at_high_degree():
    z = np.array([-45.0, -20.0, 0.3, 7.0, 45.0])
    got = np.asarray(real_space.hermite_functions(jnp.array(z), 201))
    with mp.workdps(60):
        for degree, (i, x) in product((0, 7, 120, 200), enumerate(map(mp.mpf, z))):
            norm = mp.sqrt(mp.mpf(2) ** degree * mp.factorial(degree) * mp.sqrt(mp.pi))
            expected = mp.hermite(degree, x) * mp.e ** (-(x**2) / 2) / norm
            assert abs(got[degree, i] - float(expected)) <= 1e-10 * abs(float(expected)) + 1e-300
    assert abs(got[200, 4]) > 0
    # without the running scale everything that far out is zero
    plain = [np.pi**-0.25 * np.exp(-(z**2) / 2)]
    plain.append(np.sqrt(2) * z * plain[0])
    for n in range(1, 200):
        plain.append(z * np.sqrt(2 / (n + 1)) * plain[n] - np.sqrt(n / (n + 1)) * plain[n - 1])
    assert plain[200][4] == 0


def test_eigenfunctions_reproduce_the_kernel():
    kernel = real_kernel(20.0, np.array([0.7, 1.1]), np.array([0.5, 0.8]))
    x = np.array([[0.1, -0.4], [0.6, 0.3], [-1.0, 0.9]])
    degrees = np.array(list(product(range(70), range(70))))
    phi = np.asarray(real_space.eigenfunctions(kernel, jnp.array(x), jnp.array(degrees), 70))
    spec = real_space.spectrum(kernel, 2)
    values = np.exp(spec.log_top + degrees @ np.asarray(spec.log_ratio))
    q = np.sqrt(20.0) * np.prod((np.pi * kernel.rho**2) ** -0.25 * np.exp(-(x**2) / (2 * kernel.rho**2)), axis=1)
    expected = q[:, None] * np.exp(-0.5 * np.sum(((x[:, None] - x) / kernel.sigma) ** 2, -1)) * q
    np.testing.assert_allclose((phi.T * values) @ phi, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("dim", "count", "params"),
    [(2, 18, (1e10, 1.0, 10.0)), (2, 18, (1e10, 1.0, 30.0)), (1, 12, (1e10, 1.0, 10.0)), (1, 12, (100.0, 1.0, 5.0))],
)
def test_log_det_in_the_flat_limit(dim, count, params):
    alpha, rho, sigma = params
    points = np.random.default_rng(11).normal(size=(count, dim)) * 0.7
    with mp.workdps(200):
        exact = mp.matrix(count, count)
        for i, j in product(range(count), repeat=2):
            x, y = [mp.mpf(float(v)) for v in points[i]], [mp.mpf(float(v)) for v in points[j]]
            exact[i, j] = mp.e ** (-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * mp.mpf(sigma) ** 2))
        expected = mp.log(mp.det(exact)) - sum(mp.mpf(float(v)) ** 2 for v in points.ravel()) / mp.mpf(rho) ** 2
        expected = float(expected + count * (mp.log(alpha) - dim * mp.log(mp.pi * mp.mpf(rho) ** 2) / 2))
    padded = np.zeros((1, 24, dim))
    padded[0, :count] = points
    mask = np.arange(24)[None] < count
    kernel = real_kernel(alpha, rho, sigma)
    value, lost = flat_log_det(kernel, jnp.array(padded), jnp.array(mask))
    assert not bool(lost[0])
    assert abs(float(value[0]) - expected) < 1e-9 * (1 + abs(expected))
    elsewhere = np.where(mask[..., None], padded, 3.3)  # what stands in the padding has no effect
    assert abs(float(flat_log_det(kernel, jnp.array(elsewhere), jnp.array(mask))[0][0] - value[0])) < 1e-10 * abs(
        expected
    )
    # the same assertion catches the Cholesky factorisation
    squared = np.sum((points[:, None] - points) ** 2, -1)
    sign, by_float = np.linalg.slogdet(np.exp(-squared / (2 * sigma**2)))
    by_float += count * (np.log(alpha) - dim * np.log(np.pi * rho**2) / 2) - np.sum(points**2) / rho**2
    assert not (sign > 0 and abs(by_float - expected) < 1e-9 * (1 + abs(expected)))


flat_log_det = jax.jit(log_det_real_space)


# ------------------------------------------------------------------ one-dimensional modes


@pytest.mark.parametrize("s", [0.3, 0.03, 0.01])
def test_interval_modes_are_those_of_dense_quadrature(s):
    modes = interval.interval_modes(s)
    _, _, e, _ = side_modes(int(6 / s) + 60, s)
    expected = np.sort(e)[::-1]
    count = min(len(expected), len(modes.eigenvalues))
    np.testing.assert_allclose(modes.eigenvalues[:count], expected[:count], atol=3e-15)
    # Σ g g is the second power of the kernel, which has a closed form
    x = np.array([0.0, 0.013, 0.2, 0.5, 0.51, 1.0])
    g = modes.extend(x)
    middle = (x[:, None] + x) / 2
    integral = s * np.sqrt(np.pi) / 2 * (special.erf((1 - middle) / s) + special.erf(middle / s))
    np.testing.assert_allclose(g @ g.T, np.exp(-((x[:, None] - x) ** 2) / (4 * s * s)) * integral, atol=1e-14)


def test_tables_interpolate_to_round_off():
    lengths = np.array([1.0, 3.0])
    table = interval.tabulate(lengths, 0.05, 0.09)
    _, _, _, half_degree, half_modes = table.functions.shape
    x = np.linspace(0, 1, 23)
    basis = interval.legendre_basis(x, 2 * half_degree)
    for sigma in np.geomspace(0.05, 0.09, 7):
        position = 2 * np.log(sigma / 0.05) / np.log(0.09 / 0.05) - 1
        weights = np.cos(np.arange(len(table.eigenvalues)) * np.arccos(np.clip(position, -1, 1)))
        values, coefficients = np.tensordot(weights, table.eigenvalues, 1), np.tensordot(weights, table.functions, 1)
        for i, length in enumerate(lengths):
            modes = interval.interval_modes(float(sigma / length))
            count = min(values.shape[1], len(modes.eigenvalues))
            np.testing.assert_allclose(values[i, :count], modes.eigenvalues[:count], atol=1e-12)
            g = modes.extend(x)
            got = np.zeros((len(x), 2 * half_modes))
            for parity in (0, 1):
                got[:, parity::2] = basis[:, parity::2] @ coefficients[i, parity]
            shared = min(got.shape[1], g.shape[1])
            # single modes hold to the eigenvectors' own round-off, the powers of the kernel they make to less
            np.testing.assert_allclose(got[:, :shared], g[:, :shared], atol=1e-11)
            np.testing.assert_allclose(got @ got.T, g @ g.T, atol=1e-12)


def test_edge_corrections_are_those_of_the_half_line():
    powers = 15
    edge = interval.edge_corrections(powers)
    x, w = nodes(700, 0.0, 160.0)  # long enough for fifteen steps of the kernel from its left third
    kernel = np.exp(-((x[:, None] - x) ** 2) / 2)
    at = np.array([0.0, 0.4, 1.7, 5.0, 20.0])
    row = np.exp(-((at[:, None] - x) ** 2) / 2)
    power = row
    for m in range(2, powers + 1):
        direct = (power * w) @ row.T / np.sqrt(2 * np.pi) ** (m - 1)
        basis = np.cos(np.arange(edge.coefficients.shape[2]) * np.arccos(2 * at[:, None] / edge.reach - 1))
        f = basis @ edge.coefficients[m - 2].T
        free = np.exp(-((at[:, None] - at) ** 2) / (2 * m)) / np.sqrt(m)
        np.testing.assert_allclose(free - (f * edge.sign[m - 2]) @ f.T, direct, atol=1e-13)
        power = (power * w) @ kernel
    # what an edge takes from a trace: on [0, 160] the second power has the integral of erfs in closed form
    half = np.sqrt(np.pi) / 2 * special.erfc(x) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(edge.trace[0], np.sum(w * half), atol=1e-13)


# ------------------------------------------------------------------ the stationary model


def test_the_reference_is_dense_quadrature_of_the_whole_window():
    points = spread_points(7, [1, 1])
    for intensity, sigma in ((20.0, 0.08), (3.0, 0.2)):
        by_modes = stationary_reference(intensity, sigma, [1, 1], points)
        dense = stationary_by_tensor_quadrature(intensity, sigma, [1, 1], points, 40)
        np.testing.assert_allclose(by_modes, dense, atol=1e-9)


CASES = [  # sides, points, (intensity, sigma): σ from the edge form to flat tables, u to .97
    ((1.0,), 3, [(9.0, 0.004), (12.0, 0.011), (9.0, 0.03), (20.0, 0.0195), (2.0, 0.18)]),
    ((1.0,), 30, [(30.0, 0.0066), (40.0, 0.0093), (50.0, 0.0079), (100.0, 0.0015)]),  # on panels
    ((1.0, 1.0), 12, [(12.0, 0.009), (60.0, 0.0125), (12.0, 0.05), (15.0, 0.1), (30.0, 0.07)]),
    pytest.param((1.0, 0.8, 1.2), 6, [(6.0, 0.016), (20.0, 0.12)], marks=pytest.mark.slow),
]


@cache
def one_window(sides, count):
    with jax.enable_x64(True):
        points = spread_points(count, sides)
        return points, observed([points], boxes=[Box([0] * len(sides), sides)])


@cache
def several_windows():
    with jax.enable_x64(True):
        return observed(PATTERNS, boxes=BOXES)


@pytest.mark.parametrize(("sides", "count", "parameters"), CASES)
def test_stationary_terms_are_those_of_dense_quadrature(sides, count, parameters):
    points, windowed = one_window(sides, count)
    for intensity, sigma in parameters:
        set_terms, log_fredholm = stationary(intensity, sigma, windowed)
        expected = stationary_reference(intensity, sigma, sides, points)
        assert abs(float(log_fredholm[0]) - expected[1]) < 1e-10 * max(1.0, abs(expected[1]))
        assert abs(float(set_terms[0]) - expected[0]) < 1e-9
        # without its edges the window would be a torus, or all of space: the same assertion catches that
        strength = intensity * (2 * np.pi * sigma**2) ** (len(sides) / 2)
        if strength < 0.9:
            borderless = float(intensity * np.prod(sides) / strength * mp.polylog(len(sides) / 2 + 1, strength))
            assert not abs(-borderless - expected[1]) < 1e-10 * max(1.0, abs(expected[1]))


def test_the_edge_form_without_its_corrections_is_caught():
    sides, points = (1.0, 1.0), spread_points(12, (1.0, 1.0))
    points[0] = [0.001, 0.4]  # a pair that sits on an edge
    points[1] = [0.001, 0.403]
    windowed = observed([points])
    intensity, sigma = 100.0, 0.0125
    assert sigma < windowed.segments[0].table.low
    assert intensity * 2 * np.pi * sigma**2 < 0.1
    expected = stationary_reference(intensity, sigma, sides, points)
    set_terms, log_fredholm = stationary(intensity, sigma, windowed)
    assert abs(float(set_terms[0]) - expected[0]) < 1e-9
    assert abs(float(log_fredholm[0]) - expected[1]) < 1e-10
    m = np.arange(1, 30)
    strength = intensity * 2 * np.pi * sigma**2
    squared = np.sum((points[:, None] - points) ** 2, -1)
    free = intensity * np.sum(strength ** (m - 1) * np.exp(-squared[..., None] / (2 * m * sigma**2)) / m, axis=-1)
    assert abs(np.linalg.slogdet(free)[1] - expected[0]) > 1e-4
    assert abs(-np.sum(intensity * strength ** (m - 1) / m**2) - expected[1]) > 1e-3


LINES = [spread_points(20, (1.0,)), spread_points(47, (2.7,)), spread_points(18, (1.0,))]
LINE_BOXES = [Box([0], [1]), Box([0], [2.7]), Box([0], [1])]


@cache
def several_lines():
    with jax.enable_x64(True):
        return observed(LINES, boxes=LINE_BOXES)


def test_panels_on_lines_of_different_lengths():
    windowed = several_lines()
    for u in (0.36, 0.7, 0.999):
        intensity, sigma = 25.0, u / 25 / np.sqrt(2 * np.pi)
        assert sigma < windowed.segments[0].table.low
        terms = [stationary_reference(intensity, sigma, b.lengths, x) for x, b in zip(LINES, LINE_BOXES, strict=True)]
        assert abs(float(stationary_log_p(intensity, sigma, windowed)) - np.sum(terms)) < 1e-9
        got, mean, variance = (
            np.asarray(value) for value in (uniform_log_z(90.0, sigma, windowed), *uniform_sizes(90.0, sigma, windowed))
        )
        for i, length in enumerate((1.0, 2.7)):
            expected = uniform_reference(90.0, np.array([sigma]), [length])
            np.testing.assert_allclose([got[i], mean[i], variance[i]], expected, rtol=1e-10)


def test_panels_that_are_too_short_to_see_only_their_neighbours_are_caught(monkeypatch):
    intensity, sigma = 25.0, 0.7 / 25 / np.sqrt(2 * np.pi)
    expected = stationary_reference(intensity, sigma, [1.0], LINES[0])[1]

    def log_fredholm():
        return float(window._panels(intensity, sigma, 1.0, jnp.zeros(0), jnp.arange(80.0))[1])

    assert abs(log_fredholm() - expected) < 1e-10
    monkeypatch.setattr(window, "PANEL", 2.5)
    assert not abs(log_fredholm() - expected) < 1e-10


def test_the_gradient_on_panels_is_that_of_differences():
    windowed = several_lines()

    def value(z):
        kernel = Stationary(intensity=jnp.exp(z[0]), sigma=jnp.exp(z[1]))
        return log_likelihood(kernel, window.BySize((windowed,)), None)[0].lower

    z, h = jnp.log(jnp.array([25.0, 0.01])), 1e-5
    compiled = jax.jit(value)
    steps = h * jnp.eye(2)
    differences = [(compiled(z + step) - compiled(z - step)) / (2 * h) for step in steps]
    np.testing.assert_allclose(jax.jit(jax.grad(value))(z), differences, rtol=1e-6)


def test_more_points_on_a_line_than_the_panels_are_for_have_no_likelihood():
    windowed = several_lines()
    assert not np.isfinite(float(stationary_log_p(5000.0, 0.9 / 5000 / np.sqrt(2 * np.pi), windowed)))


@pytest.mark.parametrize("dim", [1, 2])
def test_no_jump_between_edges_and_tables_or_from_table_to_table(dim):
    sides = (1.0,) * dim
    windowed = observed([spread_points(12, sides), spread_points(1, sides)])
    first = float(windowed.segments[0].table.low)
    for edge in [first] + [float(segment.table.high) for segment in windowed.segments[:-1]]:
        scale = (2 * np.pi * edge**2) ** (dim / 2)
        intensity = min(0.08 if dim == 2 else 0.3, (38 if edge == first else 8) * scale) / scale
        h = 1e-4
        steps = [stationary(intensity, edge * np.exp(h * step), windowed) for step in (-1.5, -0.5, 0.5, 1.5)]
        pattern = 0 if edge < 0.1 else 1  # many points are flat where σ is long: one of them then
        values = np.array([float(set_terms[pattern] + log_fredholm[0]) for set_terms, log_fredholm in steps])
        assert np.isfinite(values).all()
        # four steps across the boundary: a jump of the value would stay in the third difference
        assert abs(np.diff(values, n=3)[0]) < 1e-9
        values[2:] += 3e-9
        assert not abs(np.diff(values, n=3)[0]) < 1e-9


def test_a_process_that_does_not_exist_has_no_likelihood():
    _, windowed = one_window((1.0, 1.0), 12)
    # κ_max passes 1 somewhat after u does; far beyond it the tables cover nothing either
    for intensity, sigma in ((60.0, 0.1), (30.0, 0.2), (1e6, 0.05)):
        assert np.max(intensity * box_modes([sigma] * 2, [1, 1], np.zeros((1, 2)))[0]) > 1
        assert not np.isfinite(float(stationary_log_p(intensity, sigma, windowed)))


PATTERNS = [spread_points(8, (1.0, 1.0)), spread_points(15, (1.0, 3.0)), spread_points(5, (1.0, 1.0)) * 0.9]
BOXES = [Box([0, 0], [1, 1]), Box([0, 0], [1, 3]), Box([0, 0], [1, 1])]


def test_windows_of_different_sizes_add_up():
    together = several_windows()
    assert together.sides.shape == (2, 2)  # equal windows share one
    for intensity, sigma in ((6.0, 0.1), (6.0, 0.017)):
        expected = sum(
            sum(stationary_reference(intensity, sigma, b.lengths, p)) for p, b in zip(PATTERNS, BOXES, strict=True)
        )
        assert abs(float(stationary_log_p(intensity, sigma, together)) - expected) < 1e-9


def test_where_a_window_lies_has_no_effect():
    shift = np.array([-120.5, 7.25])
    moved = [p + shift for p in PATTERNS]
    boxes = [Box(shift.tolist(), (shift + b.lengths).tolist()) for b in BOXES]
    here, there = several_windows(), observed(moved, boxes=boxes)
    for intensity, sigma in ((6.0, 0.1), (6.0, 0.019)):
        a, b = (float(stationary_log_p(intensity, sigma, w)) for w in (here, there))
        assert abs(a - b) < 1e-9


# ------------------------------------------------------------------ uniform quality on a window


uniform_log_z = jax.jit(lambda a, s, w: window.uniform_log_normalizer(Uniform(alpha=a, sigma=s), w))
uniform_sizes = jax.jit(lambda a, s, w: window.uniform_sizes(Uniform(alpha=a, sigma=s), w))
uniform_log_esp = jax.jit(
    lambda a, s, w, size: window.uniform_log_normalizer_fixed_size(Uniform(alpha=a, sigma=s), w, size),
    static_argnums=3,
)

UNIFORM_CASES = [  # alpha, sigma: tables, edges (weak and short), one long and one short side
    (300.0, (0.08, 0.08)),
    (2000.0, (0.05, 0.2)),
    (0.5, (0.6, 3.0)),
    (50.0, (0.016, 0.016)),
    (40.0, (0.014, 0.019)),
]


@cache
def two_windows():
    with jax.enable_x64(True):
        return observed(PATTERNS, with_functions=False, boxes=BOXES)


@pytest.mark.parametrize(("alpha", "sigma"), UNIFORM_CASES)
def test_uniform_normaliser_and_sizes(alpha, sigma):
    got = uniform_log_z(alpha, np.array(sigma), two_windows())
    mean, variance = uniform_sizes(alpha, np.array(sigma), two_windows())
    for i, box in enumerate((BOXES[0], BOXES[1])):
        log_z, size, spread = uniform_reference(alpha, np.array(sigma), box.lengths)
        np.testing.assert_allclose([got[i], mean[i], variance[i]], [log_z, size, spread], rtol=2e-11)


def log_esp_of_box(alpha, sigma, sides, size):
    """log e_k by the recursion in the log domain over the strongest modes, which are all positive."""
    values = alpha * box_modes(np.array(sigma), sides, np.zeros((0, len(sides))))[0].ravel()
    values = np.sort(values[values > 0])[::-1]
    values = values[values > 1e-18 * values[0]]
    row = np.full(size + 1, -np.inf)
    row[0] = 0.0
    for v in np.log(values):
        row[1:] = np.logaddexp(row[1:], v + row[:-1])
    return row[size]


@pytest.mark.parametrize(("alpha", "sigma"), [UNIFORM_CASES[i] for i in (0, 1, 3)])
def test_uniform_log_esp(alpha, sigma):
    got, round_off = uniform_log_esp(alpha, np.array(sigma), two_windows(), 9)
    assert np.all(np.asarray(round_off) < 1e-8)
    for i, box in enumerate((BOXES[0], BOXES[1])):
        expected = log_esp_of_box(alpha, sigma, box.lengths, 9)
        assert abs(float(got[i]) - expected) < 1e-9 * (1 + abs(expected))


def test_uniform_in_one_and_three_dimensions():
    for sides, sigmas, alpha in (((2.0,), [(0.3,), (0.0042,)], 25.0), ((1.0, 0.8, 1.2), [(0.2, 0.3, 0.15)], 50.0)):
        windowed = observed([spread_points(6, sides)], with_functions=False, boxes=[Box([0] * len(sides), sides)])
        for sigma in sigmas:
            got = float(uniform_log_z(alpha, np.array(sigma), windowed)[0])
            assert abs(got - uniform_reference(alpha, np.array(sigma), sides)[0]) < 1e-10 * (1 + abs(got))

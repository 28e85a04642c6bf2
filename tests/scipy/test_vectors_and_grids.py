"""`functx.scipy.cluster`, `spatial`, `ndimage`, `interpolate` and `integrate` against SciPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.vq
import scipy.ndimage
import scipy.spatial.transform as reference
from jax.scipy.interpolate import RegularGridInterpolator as JaxInterpolator
from jax.scipy.ndimage import map_coordinates as map_coordinates_of_jax
from jax.scipy.spatial import transform as of_jax

import functx as fx
from functx.scipy.cluster.vq import vq
from functx.scipy.integrate import trapezoid
from functx.scipy.interpolate import RegularGridInterpolator
from functx.scipy.ndimage import INDEX_IN_ARRAY, map_coordinates
from functx.scipy.spatial.transform import Rotation, Slerp
from functx.testing import check_grads

random = np.random.RandomState(0)


def close(found, expected, tolerance=1e-5):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


def test_codes_and_distances_are_those_of_scipy():
    points, codes = random.randn(9, 3).astype("float32"), random.randn(4, 3).astype("float32")
    for obs, book in ((points, codes), (points[:, 0], codes[:, 0])):
        for found, expected in zip(vq(obs, book), scipy.cluster.vq.vq(obs, book), strict=True):
            close(found, expected)
    assert np.all(np.isfinite(fx.grad(lambda x: vq(x, codes)[1].sum())(codes)))
    with pytest.raises(fx.errors.ShapeError, match="one or two dimensions"):
        vq(points, codes[0])


def test_coordinates_are_mapped_as_in_jax():
    image = random.uniform(-5, 5, (4, 5)).astype("float32")
    points = [random.uniform(-9, 12, 30).astype("float32") for _ in range(2)]
    whole = image.astype("int32")

    def evaluate(function):
        return [
            function(x, points, order, mode, cval=2.0)
            for mode in INDEX_IN_ARRAY
            for order in (0, 1)
            for x in (image, whole)
        ]

    found, expected = (
        fx.jit(evaluate, static_argnums=0)(map_coordinates),
        jax.jit(evaluate, static_argnums=0)(map_coordinates_of_jax),
    )
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        close(x, y)
    inside = [random.uniform(0.1, 2.9, 4) for _ in range(2)]
    check_grads(lambda x, *c: map_coordinates(x, c, 1), (image.astype(float), *inside), order=1)
    for mode, size in (("mirror", 1), ("reflect", 1)):
        x = np.ones(size)
        close(
            map_coordinates(x, [[-1.0, 2.0]], 1, mode),
            scipy.ndimage.map_coordinates(x, [[-1.0, 2.0]], order=1, mode=mode),
        )
    with pytest.raises(fx.errors.ValueRangeError, match="order must be 0 or 1"):
        map_coordinates(image, points, 2)
    with pytest.raises(fx.errors.ShapeError, match="2 dimensions; got 1"):
        map_coordinates(image, points[:1], 1)


def test_values_between_grid_points_are_those_of_jax():
    grid = np.array([0.0, 1.0, 3.0], "float32"), np.linspace(-1, 2, 4).astype("float32")
    values = random.randn(3, 4, 2).astype("float32")
    points = random.uniform(-1.5, 3.5, (5, 6, 2)).astype("float32")
    for options in ({}, {"method": "nearest"}, {"fill_value": None}, {"fill_value": 7.0}):
        ours, theirs = (
            RegularGridInterpolator(grid, values, **options),
            JaxInterpolator(grid, values, **options),
        )
        close(fx.jit(lambda f, x: f(x))(ours, points), jax.jit(lambda f, x: f(x))(theirs, points))
    ours = RegularGridInterpolator(grid, values)
    coordinates = points[..., 0], points[..., 1]
    close(ours(coordinates), ours(points))
    line = RegularGridInterpolator(grid[:1], values[:, 0, 0], fill_value=None)
    close(line(points[..., 0].ravel()), np.asarray(line((points[..., 0],))).ravel())
    values_at = fx.grad(lambda values: RegularGridInterpolator(grid, values)(points[:1, :1]).sum())(
        values
    )
    close(np.sum(values_at), 0.0 if np.isnan(ours(points[0, 0])).any() else 2.0)
    for wrong in (
        lambda: RegularGridInterpolator(grid[:1] * 3, values),
        lambda: ours(points[..., :1]),
        lambda: RegularGridInterpolator(grid, values, method="cubic"),
    ):
        with pytest.raises(ValueError, match="RegularGridInterpolator: "):
            wrong()


def test_integrals_are_those_of_trapezoids():
    y = random.randn(3, 5).astype("float32")
    close(trapezoid(y, dx=0.5), np.trapezoid(y, dx=0.5))


QUATERNIONS = random.randn(6, 4).astype("float32")
VECTORS = random.randn(6, 3).astype("float32")


def test_rotations_are_those_of_jax():
    def evaluate(rotation, slerp):
        r = rotation.from_quat(QUATERNIONS)
        s = rotation.from_rotvec(VECTORS)
        times = np.arange(6.0, dtype="float32")
        return [
            r.as_matrix(),
            r.as_mrp(),
            r.as_rotvec(),
            r.as_rotvec(degrees=True),
            r.as_quat(canonical=True),
            r.as_quat(scalar_first=True),
            r.inv().as_quat(),
            r.magnitude(),
            (r * s).as_quat(),
            (r * s[0]).as_quat(),
            r[1:3].as_quat(),
            r.apply(VECTORS),
            r.apply(VECTORS[0], inverse=True),
            s.as_quat(),
            rotation.from_matrix(r.as_matrix()).as_matrix(),
            rotation.from_mrp(VECTORS).as_quat(),
            rotation.concatenate([r, s]).as_quat(),
            rotation.from_euler("xyz", VECTORS).as_quat(),
            rotation.from_euler("ZX", VECTORS[:, :2], degrees=True).as_quat(),
            rotation.from_euler("y", 0.5).as_quat(),
            rotation.identity().as_quat(),
            rotation.from_quat(r.mean().quat * (1 - 2 * (r.mean().quat[3] < 0))).as_matrix(),
            *[r.as_euler(seq) for seq in ("xyz", "ZYX", "zxz", "YXY")],
            slerp.init(times, r)(np.array([0.0, 0.3, 2.0, 4.9], "float32")).as_matrix(),
            slerp.init(times, r)(1.5).as_matrix(),
        ]

    found, expected = (
        fx.jit(evaluate, static_argnums=(0, 1))(Rotation, Slerp),
        jax.jit(evaluate, static_argnums=(0, 1))(of_jax.Rotation, of_jax.Slerp),
    )
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(x, y, 2e-4, 2e-5, err_msg=str(i))
        assert x.dtype == y.dtype


def test_rotations_at_special_angles_are_those_of_scipy():
    half_turns = np.array(
        [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0.6, 0.8, 0], [0, 0, 0, 1], [0, 0, 0, -1]]
    )
    close(
        Rotation.from_quat(half_turns).as_matrix(),
        reference.Rotation.from_quat(half_turns).as_matrix(),
    )
    matrices = reference.Rotation.from_quat(half_turns).as_matrix()
    close(Rotation.from_matrix(matrices).as_matrix(), matrices)
    for seq in ("xyz", "XYZ", "zxz", "ZXZ"):
        ends = (0.0, np.pi) if seq[0] == seq[2] else (-np.pi / 2, np.pi / 2)
        angles = np.array([[0.3, end, 0.4] for end in ends])
        r = Rotation.from_euler(seq, angles)
        close(Rotation.from_euler(seq, r.as_euler(seq)).as_matrix(), r.as_matrix(), 1e-3)
    drawn = Rotation.random(fx.random.key(0), 4)
    close(np.linalg.norm(drawn.as_quat(), axis=-1), np.ones(4))
    assert Rotation.identity(3).quat.shape == (3, 4)


def test_derivatives_of_rotations_hold_at_the_identity():
    zero = np.zeros(3)

    def there_and_back(v):
        return Rotation.from_rotvec(v).as_rotvec()

    with jax.enable_x64(True):
        close(fx.jacfwd(there_and_back)(zero), np.eye(3))
        close(fx.jacrev(there_and_back)(zero), np.eye(3))
        # R(v) = 1 + [v] + [v]^2 / 2 + ...: the second derivative of the trace is -2.
        close(
            fx.hessian(lambda v: jnp.trace(Rotation.from_rotvec(v).as_matrix()))(zero),
            -2 * np.eye(3),
        )
        check_grads(there_and_back, (np.array([0.3, -0.2, 0.9]),), order=1)
    assert np.all(np.isfinite(fx.grad(lambda v: Rotation.from_rotvec(v).magnitude())(zero)))


def test_wrong_rotations_have_errors():
    r = Rotation.identity()
    for wrong in (
        lambda: Rotation.from_euler("xx", np.zeros(2)),
        lambda: Rotation.from_euler("xY", np.zeros(2)),
        lambda: Rotation.from_euler("xyz", np.zeros(2)),
        lambda: Rotation.from_quat(np.zeros(3)),
        lambda: Slerp.init(np.zeros(2), r),
    ):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (lambda: len(r), lambda: r[0]):
        with pytest.raises(TypeError):
            wrong()

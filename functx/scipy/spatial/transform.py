"""Rotations of space as unit quaternions (x, y, z, w), and interpolation between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import functx.numpy as np
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.typing import ArrayLike, DTypeLike, Index, Value
from functx.numpy.indexing import take_along_axis
from functx.numpy.promotion import promote_real
from functx.random.samplers import normal

__all__ = ["Rotation", "Slerp"]


class Rotation(NamedTuple):
    """Rotations of vectors of three numbers, by their quaternions `quat` (..., 4).

    Its methods make rotations from other descriptions, and give these; the dimensions before the last
    remain. The product `p * q` rotates by q first. A rotation is a pytree.

    >>> import numpy
    >>> from functx.scipy.spatial.transform import Rotation
    >>> quarter = Rotation.from_euler("z", 90, degrees=True)
    >>> quarter.apply(numpy.array([1.0, 0.0, 0.0])).round(4).tolist()
    [0.0, 1.0, 0.0]
    """

    quat: Value

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Self:
        """The rotations of several stacks as one."""
        return cls(np.concatenate([rotation.quat for rotation in rotations]))

    @classmethod
    def from_euler(cls, seq: str, angles: ArrayLike, degrees: bool = False) -> Self:
        """Rotations about up to three axes in turn, by `angles` (..., len(seq)).

        `seq` names axes that move with the rotation in upper case, "XYZ", or fixed ones in lower case.
        For one axis, `angles` may be a number. ValueRangeError for another `seq`.
        """
        axes, is_intrinsic = _axes("from_euler", seq, (1, 2, 3))
        angles = np.asarray(promote_real("Rotation.from_euler", angles)[0])
        angles = np.deg2rad(angles) if degrees else angles
        angles = angles if angles.ndim else angles[None]
        if angles.shape[-1] != len(axes):
            raise ShapeError(
                f"Rotation.from_euler: angles must have the shape (..., {len(axes)}); got {angles.shape}"
            )
        out = _about_axis(axes[0], angles[..., 0])
        for i, axis in enumerate(axes[1:], start=1):
            other = _about_axis(axis, angles[..., i])
            out = _product(out, other) if is_intrinsic else _product(other, out)
        return cls(out)

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> Self:
        """The rotations of orthogonal matrices (..., 3, 3) of determinant 1."""
        m = _real(matrix, "from_matrix", (3, 3))
        trace = np.trace(m, axis1=-2, axis2=-1)
        diagonal = [m[..., i, i] for i in range(3)]
        # One formula for each component of the quaternion, accurate where that is the largest.
        candidates = []
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            quat = {
                i: 1 - trace + 2 * diagonal[i],
                j: m[..., j, i] + m[..., i, j],
                k: m[..., k, i] + m[..., i, k],
                3: m[..., k, j] - m[..., j, k],
            }
            candidates.append(np.stack([quat[axis] for axis in range(4)], axis=-1))
        differences = [
            m[..., (i + 2) % 3, (i + 1) % 3] - m[..., (i + 1) % 3, (i + 2) % 3] for i in range(3)
        ]
        candidates.append(np.stack([*differences, 1 + trace], axis=-1))
        largest = np.argmax(np.stack([*diagonal, trace], axis=-1), axis=-1)[..., None, None]
        stacked = np.stack(candidates, axis=-2)
        return cls(_normalize(take_along_axis(stacked, largest, axis=-2)[..., 0, :]))

    @classmethod
    def from_mrp(cls, mrp: ArrayLike) -> Self:
        """The rotations of modified Rodrigues parameters (..., 3): the axis times tan(angle / 4)."""
        mrp = _real(mrp, "from_mrp", (3,))
        square = np.sum(mrp * mrp, axis=-1, keepdims=True)
        return cls(np.concatenate([2 * mrp, 1 - square], axis=-1) / (1 + square))

    @classmethod
    def from_quat(cls, quat: ArrayLike) -> Self:
        """The rotations of quaternions (..., 4), which are normalized."""
        return cls(_normalize(_real(quat, "from_quat", (4,))))

    @classmethod
    def from_rotvec(cls, rotvec: ArrayLike, degrees: bool = False) -> Self:
        """The rotations of vectors (..., 3): the axis times the angle."""
        rotvec = _real(rotvec, "from_rotvec", (3,))
        rotvec = np.deg2rad(rotvec) if degrees else rotvec
        square = np.sum(rotvec * rotvec, axis=-1, keepdims=True)
        # sin(angle / 2) / angle and cos(angle / 2) are smooth functions of the square of the angle.
        is_small = square < _SMALL_SQUARE
        angle = np.sqrt(np.where(is_small, 1.0, square))
        scale = np.where(is_small, 0.5 - square / 48 + square**2 / 3840, np.sin(angle / 2) / angle)
        cosine = np.where(is_small, 1 - square / 8 + square**2 / 384, np.cos(angle / 2))
        return cls(np.concatenate([scale * rotvec, cosine], axis=-1))

    @classmethod
    def identity(cls, num: int | None = None, dtype: DTypeLike = float) -> Self:
        """The rotation that changes nothing, or a stack of `num` of them."""
        quat = np.array([0.0, 0.0, 0.0, 1.0], dtype=dtype)
        return cls(quat if num is None else np.tile(quat, (num, 1)))

    @classmethod
    def random(cls, random_key: ArrayLike, num: int | None = None) -> Self:
        """A rotation of uniform distribution, or a stack of `num` of them."""
        return cls(_normalize(normal(random_key, (4,) if num is None else (num, 4))))

    def __getitem__(self, indexer: Index) -> Rotation:  # type: ignore[override]
        """The rotations of a stack at an index."""
        self._check_stack()
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        """The number of rotations of a stack."""
        self._check_stack()
        return self.quat.shape[0]

    def __mul__(self, other: Rotation) -> Rotation:  # type: ignore[override]
        """The rotation by `other`, then by `self`."""
        return Rotation.from_quat(_product(self.quat, other.quat))

    def apply(self, vectors: ArrayLike, inverse: bool = False) -> Value:
        """The rotated vectors (..., 3), or those of the inverse rotation."""
        vectors, matrix = _real(vectors, "apply", (3,)), self.as_matrix()
        matrix = np.swapaxes(matrix, -1, -2) if inverse else matrix
        return np.matmul(matrix, vectors[..., None])[..., 0]

    def as_euler(self, seq: str, degrees: bool = False) -> Value:
        """The angles (..., 3) about three axes, as `from_euler` takes them.

        The middle one is from 0 to pi if the first and third axis are equal, else from -pi / 2 to
        pi / 2. At the ends of its range, the third angle is 0.
        """
        axes, is_intrinsic = _axes("as_euler", seq, (3,))
        i, j, k = axes[::-1] if is_intrinsic else axes
        is_symmetric = i == k
        k = 3 - i - j if is_symmetric else k
        sign = (i - j) * (j - k) * (k - i) // 2
        x, y, z, w = (self.quat[..., axis] for axis in (i, j, k, 3))
        z = z * sign
        a, b, c, d = (w, x, y, z) if is_symmetric else (w - y, x + z, y + w, z - x)
        middle = 2 * np.arctan2(np.hypot(c, d), np.hypot(a, b))
        half_sum, half_difference = np.arctan2(b, a), np.arctan2(d, c)
        at_start, at_end = np.abs(middle) <= _GIMBAL_LOCK, np.abs(middle - math.pi) <= _GIMBAL_LOCK
        locked = np.where(at_start, 2 * half_sum, (2 if is_intrinsic else -2) * half_difference)
        low, high = half_sum - half_difference, half_sum + half_difference
        first, third = (high, low) if is_intrinsic else (low, high)
        is_locked = at_start | at_end
        first, third = np.where(is_locked, locked, first), np.where(is_locked, 0.0, third)
        if not is_symmetric:
            first, third = (first * sign, third) if is_intrinsic else (first, third * sign)
            middle = middle - math.pi / 2
        angles = np.stack([first, middle, third], axis=-1)
        angles = (angles + math.pi) % (2 * math.pi) - math.pi
        return np.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Value:
        """The orthogonal matrices (..., 3, 3)."""
        x, y, z, w = (self.quat[..., i] for i in range(4))
        rows = [
            [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), y * y - x * x - z * z + w * w, 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), z * z - x * x - y * y + w * w],
        ]
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)

    def as_mrp(self) -> Value:
        """The modified Rodrigues parameters (..., 3), of norm at most 1."""
        quat = self._with_angle_up_to_half_a_turn()
        return quat[..., :3] / (1 + quat[..., 3:])

    def as_rotvec(self, degrees: bool = False) -> Value:
        """The axis times the angle, (..., 3)."""
        quat = self._with_angle_up_to_half_a_turn()
        v, w = quat[..., :3], quat[..., 3:]
        square = np.sum(v * v, axis=-1, keepdims=True)
        # angle / sin(angle / 2) is a smooth function of the square of the sine.
        is_small = square < _SMALL_SQUARE
        sine = np.sqrt(np.where(is_small, 1.0, square))
        ratio = square / np.where(is_small, w * w, 1.0)
        series = (1 - ratio / 3 + ratio**2 / 5 - ratio**3 / 7) / np.where(is_small, w, 1.0)
        rotvec = 2 * np.where(is_small, series, np.arctan2(sine, w) / sine) * v
        return np.rad2deg(rotvec) if degrees else rotvec

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Value:
        """The quaternions (..., 4), with `canonical` the first nonzero of w, x, y and z positive."""
        quat = self.quat
        if canonical:
            x, y, z, w = (quat[..., i] for i in range(4))
            is_negative = z < 0
            for component in (y, x, w):
                is_negative = (component < 0) | (component == 0) & is_negative
            quat = np.where(is_negative[..., None], -quat, quat)
        return np.roll(quat, 1, axis=-1) if scalar_first else quat

    def inv(self) -> Rotation:
        """The inverse rotations."""
        return Rotation(self.quat * np.array([-1, -1, -1, 1], dtype=self.quat.dtype))

    def magnitude(self) -> Value:
        """The angles, from 0 to pi; the derivative of the angle 0 is 0."""
        sine = np.linalg.norm(self.quat[..., :3], axis=-1)
        return 2 * np.arctan2(sine, np.abs(self.quat[..., 3]))

    def mean(self, weights: ArrayLike | None = None) -> Rotation:
        """The rotation with the least mean of squared distances, of matrices, to those of a stack."""
        n, dtype = len(self), self.quat.dtype
        w = np.ones(n, dtype) if weights is None else np.asarray(weights, dtype)
        if w.shape != (n,):
            raise ShapeError(f"Rotation.mean: weights must have the shape ({n},); got {w.shape}")
        _, vectors = np.linalg.eigh(np.matmul(w * self.quat.T, self.quat))
        return Rotation(vectors[:, -1])

    @property
    def single(self) -> bool:
        """Whether this is one rotation, not a stack."""
        return self.quat.ndim == 1

    def _check_stack(self) -> None:
        if self.single:
            raise ArgumentError("Rotation: rotations must be a stack for an index or len; got one")

    def _with_angle_up_to_half_a_turn(self) -> Value:
        return np.where(self.quat[..., 3:] < 0, -self.quat, self.quat)


class Slerp(NamedTuple):
    """Rotations at any time, at constant speed between given rotations; made by `Slerp.init`.

    >>> import numpy
    >>> from functx.scipy.spatial.transform import Rotation, Slerp
    >>> ends = Rotation.from_euler("z", numpy.array([[0.0], [90.0]]), degrees=True)
    >>> Slerp.init(numpy.array([0.0, 1.0]), ends)(0.5).as_euler("xyz", degrees=True).round(2).tolist()
    [0.0, 0.0, 45.0]
    """

    times: Value
    timedelta: Value
    rotations: Rotation
    rotvecs: Value

    @classmethod
    def init(cls, times: ArrayLike, rotations: Rotation) -> Self:
        """The interpolation of a stack of at least two `rotations` at ascending `times`."""
        if not isinstance(rotations, Rotation):
            raise ArgumentError(
                f"Slerp: rotations must be a Rotation; got {type(rotations).__name__}"
            )
        times = np.asarray(times, rotations.quat.dtype)
        if rotations.single or len(rotations) < 2 or times.shape != rotations.quat.shape[:1]:
            raise ShapeError(
                "Slerp: rotations must be a stack of at least two, and times one for each; "
                f"got the shapes {rotations.quat.shape} and {times.shape}"
            )
        starts, ends = Rotation(rotations.quat[:-1]), Rotation(rotations.quat[1:])
        return cls(times, np.diff(times), starts, (starts.inv() * ends).as_rotvec())

    def __call__(self, times: ArrayLike) -> Rotation:
        """The rotations at `times`, a number or a vector."""
        times = np.asarray(times, self.times.dtype)
        if times.ndim > 1:
            raise ShapeError(f"Slerp: times must have at most one dimension; got {times.shape}")
        last = self.timedelta.shape[0] - 1
        i = np.clip(np.searchsorted(self.times, times) - 1, 0, last)
        fraction = (times - self.times[i]) / self.timedelta[i]
        turned = Rotation.from_rotvec(self.rotvecs[i] * fraction[..., None])
        return Rotation(self.rotations.quat[i]) * turned


_SMALL_SQUARE = 1e-4
"""The square of an angle, or of a sine, below which functions of it are series."""
_GIMBAL_LOCK = 1e-7
"""How near the middle Euler angle is to an end of its range where the others are not determined."""


def _real(x: ArrayLike, method: str, shape: tuple[int, ...]) -> Value:
    """`x` as a floating-point array whose last dimensions are `shape`."""
    x = np.asarray(promote_real(f"Rotation.{method}", x)[0])
    if x.shape[-len(shape) :] != shape:
        dims = ", ".join(map(str, shape))
        raise ShapeError(
            f"Rotation.{method}: the array must have the shape (..., {dims}); got {x.shape}"
        )
    return x


def _axes(method: str, seq: str, lengths: tuple[int, ...]) -> tuple[list[int], bool]:
    """The axes that `seq` names, as numbers, and whether they move with the rotation."""
    is_intrinsic = seq.isupper()
    axes = ["xyz".find(letter) for letter in (seq.lower() if is_intrinsic else seq)]
    repeats = any([i == j for i, j in pairwise(axes)])
    if len(seq) not in lengths or -1 in axes or repeats:
        raise ValueRangeError(
            f"Rotation.{method}: seq must be {' or '.join(map(str, lengths))} of the axes 'xyz', or of 'XYZ', "
            f"no two in a row equal; got {seq!r}"
        )
    return axes, is_intrinsic


def _about_axis(axis: int, angle: Value) -> Value:
    """The quaternions of rotations about one axis."""
    parts: dict[int, Any] = {axis: np.sin(angle / 2), 3: np.cos(angle / 2)}
    return np.stack([parts.get(i, np.zeros_like(angle)) for i in range(4)], axis=-1)


def _product(p: Value, q: Value) -> Value:
    """The product of quaternions."""
    u, a, v, b = p[..., :3], p[..., 3:], q[..., :3], q[..., 3:]
    vector = a * v + b * u + np.cross(u, v)
    return np.concatenate([vector, a * b - np.sum(u * v, axis=-1, keepdims=True)], axis=-1)


def _normalize(quat: Value) -> Value:
    return quat / np.sqrt(np.sum(quat * quat, axis=-1, keepdims=True))

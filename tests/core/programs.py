"""Programs that several tests print, read and edit."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from functx.core.effects import Effect
from functx.core.primitive import Primitive
from functx.core.samples import f32
from functx.core.tracing import trace
from functx.ops.arithmetic import add, mul
from functx.ops.contraction import matmul
from functx.ops.reductions import reduce_sum
from functx.ops.transcendental import tanh
from functx.transforms.call_primitive import Call


def program_of(fun, *avals, names=None, name=None):
    """The program of a function of tracers that returns a list of them."""
    in_names = None if names is None else lambda: names
    return trace(fun, avals, name=name or fun.__name__.strip("<>"), in_names=in_names)[0]


def loss(x, w):
    h = tanh(matmul(x, w))
    squares = mul(h, h)
    total = reduce_sum(squares)
    return [mul(total, 0.5)]


def loss_program():
    return program_of(loss, f32[4, 3], f32[3, 5], names=["x", "params['w'][0]"])


def block(x, w):
    y = tanh(matmul(x, w))
    return [add(y, x)]


def network(x, w):
    (x,) = Call(block_program())(x, w)
    (x,) = Call(program_of(twice, f32[3, 3], f32[3, 3], names=["x", "w"]))(x, w)
    (out,) = Call(block_program())(x, w)
    return [out]


def twice(x, w):
    (x,) = Call(block_program())(x, w)
    return Call(block_program())(x, w)


def block_program():
    return program_of(block, f32[3, 3], f32[3, 3], names=["x", "w"])


def network_program():
    return program_of(network, f32[3, 3], f32[3, 3], names=["x", "w"])


class Mode(enum.Enum):
    CLIP = 1
    FILL = 2


class Window(NamedTuple):
    start: int
    sizes: Any = None


class Probe(Primitive):
    """The operand itself, with parameters of every kind."""

    value: Any
    other: Any = -0.0

    def abstract_eval(self, x):
        return x

    def lower(self, ctx, x):
        return x


class Halves(Primitive):
    """The operand twice."""

    multiple_results = True

    def abstract_eval(self, x):
        return x, x

    def lower(self, ctx, x):
        return x, x


class Announce(Primitive):
    """No outputs at all."""

    label: str
    multiple_results = True
    effects = frozenset({Effect.CALLBACK})

    def abstract_eval(self, x):
        return ()

    def lower(self, ctx, x):
        return ()

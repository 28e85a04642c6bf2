"""The errors and warnings of functx, each with its cause, the smallest failing code and the cure."""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING

import jax.dtypes
import jax.errors
import numpy as np

from functx.core.source_info import Source, source_line, user_source
from functx.core.tracebacks import hide_callers

if TYPE_CHECKING:
    from functx.core.builder import Builder
    from functx.core.tracer import Tracer


class FunctxError(Exception):
    """The base class of all errors that functx raises on purpose.

    The message states the requirement and the actual value, then the user's line and the cure.
    """

    source: Source | None

    def __init__(self, problem: str, *details: str, fix: str = "", source: Source | None = None):
        self.problem = problem
        self.details = list(details)
        self.fix = fix
        self.source = source if source is not None else _current_source()
        self._place = ""
        # Errors of JAX, which some classes are too, would ask for a tracer.
        Exception.__init__(self, problem)
        hide_callers(_getframe(1))

    def __reduce__(self) -> tuple[object, ...]:
        # Code objects cannot be pickled; the text of the user's line can.
        return _unpickle_error, (type(self), self.problem, self.details, self.fix, self.location)

    @property
    def location(self) -> str:
        """The user's line as the message shows it; empty if it is not known."""
        return self._place if self.source is None else source_line(self.source)

    def add(self, *details: str) -> FunctxError:
        """This error with further lines of detail."""
        self.details += details
        return self

    def __str__(self) -> str:
        lines = [self.problem, *self.details]
        if self.location:
            lines.append(f"at {self.location}")
        if self.fix:
            lines.append(self.fix)
        if globals().get(type(self).__name__) is type(self):
            # Prints its docstring: cause, smallest failing code and cure.
            lines.append(f"More: python -m functx.errors {type(self).__name__}")
        return "\n  ".join(lines)


def _unpickle_error(
    cls: type[FunctxError], problem: str, details: list[str], fix: str, place: str
) -> FunctxError:
    """The error of a pickle."""
    error = cls(problem, *details, fix=fix)
    error.source, error._place = None, place
    return error


def _current_source() -> Source | None:
    """The source of the equation that is being rewritten, else the user's line that called functx."""
    from functx.core.tracer import current_builder

    builder = current_builder.get()
    if builder is not None and builder.source is not None:
        return builder.source
    return user_source(3)


class ShapeError(FunctxError, ValueError, TypeError):
    """Shapes do not fit each other or the operation.

    Smallest failing code: `functx.numpy.ones(3) + functx.numpy.ones(4)`.
    Cure: reshape, broadcast or slice an operand, so that the stated rule holds.
    """


class DTypeError(FunctxError, TypeError, ValueError):
    """A dtype does not fit the operation, or two dtypes do not fit each other.

    Smallest failing code: `functx.numpy.arange(3) << 1.5`.
    Cure: convert with `x.astype(dtype)` before the operation.
    """


class TypePromotionError(DTypeError, jax.dtypes.TypePromotionError):  # type: ignore[misc]
    """Two dtypes promote to none, or to none that `numpy_dtype_promotion` allows.

    Smallest failing code: `functx.numpy.add(numpy.ones(2, "float16"), jax.numpy.ones(2, "float8_e4m3fn"))`.
    Cure: convert one of them with `x.astype(dtype)`.
    """


class ArgumentError(FunctxError, TypeError, ValueError):
    """A function was given an argument of a type that it does not take.

    Smallest failing code: `functx.numpy.sin("one")`.
    Cure: pass arrays, numbers, or pytrees of them.
    """


class TypedKeyError(ArgumentError):
    """Typed keys of JAX are an operand of an operation on numbers.

    Smallest failing code: `functx.numpy.sin(jax.random.key(0))`.
    Cure: pass the words of the keys, `functx.random.key_data(keys)`.
    """


class ValueRangeError(FunctxError, ValueError, TypeError, OverflowError):
    """An argument has a value outside the range that the function takes.

    Smallest failing code: `functx.numpy.linspace(0, 1, -3)`.
    Cure: pass a value in the stated range.
    """


class IntegerRangeError(ValueRangeError, OverflowError):
    """An integer has no place in the integers that the function computes with.

    Smallest failing code: `functx.numpy.fft.fftfreq(2**70)`.
    Cure: pass an integer of at most 64 bits.
    """


class AxisError(FunctxError, ValueError, IndexError, TypeError):
    """An axis does not exist in the array, or is named twice.

    Smallest failing code: `functx.numpy.sum(functx.numpy.ones(3), axis=1)`.
    Cure: use an axis in `-ndim <= axis < ndim`, each at most once.
    """


class IndexingError(FunctxError, IndexError, TypeError, ValueError):
    """An index does not fit the array that it indexes.

    Smallest failing code: `functx.numpy.ones(3)[5]` inside a traced function.
    Cure: index within the bounds that the message names.
    """


class TreeError(FunctxError, ValueError, TypeError, RuntimeError):
    """Two pytrees that must have the same structure differ.

    Smallest failing code: `functx.jvp(f, (1.0,), (1.0, 2.0))`.
    Cure: give the second the structure of the first.
    """


class AxisSizeError(FunctxError, ValueError):
    """The axes that `vmap` maps over have different lengths, or there are none.

    Smallest failing code: `functx.vmap(f)(functx.numpy.ones(3), functx.numpy.ones(4))`.
    Cure: pass `in_axes` with None for arguments that every call shares.
    """


class UnboundAxisError(FunctxError, NameError):
    """A collective names an axis that is not bound around it.

    Smallest failing code: `functx.lax.psum(1.0, "i")`.
    Cure: call it in a function under `functx.vmap(axis_name=)` or `functx.shard_map`.
    """


class ReplicationError(FunctxError, ValueError):
    """A result of `shard_map` differs between devices on which it must be the same.

    Smallest failing code: `functx.shard_map(lambda x: x, mesh=mesh, in_specs=P("i"), out_specs=P())`.
    Cure: name the axis in `out_specs`, or combine the values with `lax.psum` or `lax.pmean`.
    """


class CollectiveError(FunctxError, NotImplementedError):
    """A collective is in a branch or loop that not all elements along its axis execute.

    Smallest failing code: `lax.while_loop` with a `psum` over an axis of `vmap` in its body, and a
    condition that differs along that axis.
    Cure: make the condition the same along the axis, for instance by `lax.pmax`.
    """


class InAxesError(FunctxError, ValueError, TypeError):
    """`in_axes` or `out_axes` does not fit the arguments or results of the function.

    Smallest failing code: `functx.vmap(f, in_axes=(0, 0))(x)`.
    Cure: an int, None, or a tree prefix of the arguments (results) with such leaves.
    """


class OutAxesError(FunctxError, ValueError, TypeError):
    """A result of a mapped function cannot have the axis that `out_axes` gives.

    Smallest failing code: `functx.vmap(lambda x: x, out_axes=None)(x)`.
    Cure: give a mapped result an axis, and an unmapped one None or an axis.
    """


class GradientError(FunctxError, TypeError, RuntimeError):
    """A function to differentiate does not return a real scalar, or an argument is not inexact.

    Smallest failing code: `functx.grad(lambda x: x * 2.0)(functx.numpy.ones(3))`.
    Cure: reduce the output (`.sum()`), use `jacrev` or `vjp`, or convert the argument.
    """


class PatternSizeError(FunctxError, ValueError):
    """The sparsity pattern of a Jacobian or Hessian has too many places to be stored.

    Smallest failing code: `functx.sparse.jacobian(lambda x: x * x.sum())(functx.numpy.ones(20000))`.
    Cure: use products with vectors (`jvp`, `vjp`, `hvp`), or close over the integers that index arrays.
    """


class LinearityError(GradientError):
    """A function or a rule that is transposed is not linear.

    Smallest failing code: `functx.linear_transpose(lambda x: x * x, 1.0)`.
    Cure: make it linear, or take the derivative with `vjp`, whose pullback is linear.
    """


class ArgnumsError(FunctxError, ValueError, TypeError, RuntimeError):
    """`argnums` does not name positional arguments of the call.

    Smallest failing code: `functx.grad(f, argnums=2)(x)`.
    Cure: an int or a tuple of distinct ints, each a position in the call.
    """


class TangentError(FunctxError, TypeError, ValueError, RuntimeError):
    """A tangent or cotangent does not have the shape or dtype of its value.

    Smallest failing code: `functx.jvp(f, (x,), (x[:1],))`.
    Cure: pass an array of the shape and dtype of the value.
    """


class WrapperProtocolError(FunctxError, TypeError):
    """A class of arrays made of arrays does not keep to its protocol.

    Smallest failing code: `class Scaled(functx.ArrayWrapper): pass`, which lacks the three methods.
    Cure: define the methods as the docstring of `functx.ArrayWrapper` says; the message names the one.
    """


class WrapperDispatchError(FunctxError, TypeError, NotImplementedError):
    """No handler of a wrapper type computes an operation.

    Smallest failing code: `functx.numpy.sin(x)`, where `x.__functx_dispatch__` returns NotImplemented.
    Cure: handle the operation that the message names, or convert the operand to an array before.
    """


class WrapperShapeError(FunctxError, ValueError):
    """An axis or the shape of an array made of arrays does not follow from its inner arrays.

    Smallest failing code: `functx.vmap(f)(x)`, where an inner array lacks the first axis of `x`.
    Cure: keep the dimensions of inner arrays, with length 1 where all elements share a value.
    """


class WrapperWriteError(FunctxError, RuntimeError):
    """An array made of arrays is written to where the write would not reach all that shares its memory.

    Smallest failing code: `functx.jit(lambda i: w.__setitem__(i, 0.0))(0)`, where `w` is from outside.
    Cure: pass it as an argument, write to whole rows, or compute a new array.
    """


class WrapperTangentError(TreeError):
    """A tangent or cotangent is of another type than the value, which is an array made of arrays.

    Smallest failing code: `functx.vjp(lambda w: w, w)[1](functx.numpy.ones(w.shape))`.
    Cure: pass an instance of the class that the message names, made of tangents of the inner arrays.
    """


class ConcretizationError(
    FunctxError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    TypeError,
    RuntimeError,
):
    """Python code needs the value of a traced array that has none yet.

    Smallest failing code: `functx.jit(lambda x: x if x > 0 else -x)(1.0)`.
    Cure: `functx.numpy.where`, `functx.lax.cond`, or `static_argnums` for the argument.
    """


class SliceBoundError(ConcretizationError, IndexError):
    """A bound of a slice is traced, so that the length of the part is not known.

    Smallest failing code: `functx.jit(lambda x, i: x[i : i + 2])(x, 1)`.
    Cure: `functx.lax.dynamic_slice_in_dim(x, i, 2)`, or `x[i + functx.numpy.arange(2)]`.
    """


class WrapperConversionError(ConcretizationError):
    """An array made of arrays is converted to a Python value, to an array of NumPy or to a Variable.

    Smallest failing code: `if w > 0: ...`, `numpy.asarray(w)`, or `Variable(w)`.
    Cure: convert an inner array, or the array that the wrapper stands for.
    """


class DifferentiatedValueError(FunctxError, TypeError):
    """A value that is being differentiated is converted to a Python number, which loses the derivative.

    Smallest failing code: `functx.grad(lambda x: float(x) ** 2)(1.0)`.
    Cure: keep the array, with `functx.numpy` in place of `math`, or call
    `functx.stop_gradient(x)` first.
    """


class ForeignCodeError(FunctxError, jax.errors.TracerArrayConversionError, TypeError):
    """A traced array was passed to code that cannot trace it, such as NumPy.

    Smallest failing code: `functx.jit(lambda i: numpy_table[i])(0)`.
    Cure: `functx.numpy.asarray(table)[i]`, or the function of the same name in `functx.numpy` or
    `jax.numpy`.
    """


class EscapedTracerError(FunctxError, jax.errors.UnexpectedTracerError, RuntimeError):
    """A traced value was used after or outside its trace.

    Smallest failing code: `functx.grad(lambda x: saved.append(x) or x)(1.0); saved[0] + 1`.
    Cure: return the value from the function, for instance with `has_aux=True`.
    """


class ExploredNumberError(ConcretizationError):
    """A function that `explore` traces needs a traced value as a number of Python.

    Smallest failing code: `functx.explore(lambda n: functx.numpy.zeros(int(n)))(3)`.
    Cure: compute with the array, count with `while i < n`, and pass what decides shapes as a static argument.
    """


class PathLimitError(FunctxError, RuntimeError):
    """A function that `explore` traces has more paths than the limit.

    Smallest failing code: `functx.explore(lambda x: max(x, 1.0), paths=1)(2.0)`.
    Cure: `functx.numpy.where` or `functx.lax.cond` at the line with most decisions, or a larger `paths`.
    """


class IterationLimitError(FunctxError, RuntimeError):
    """A loop that `explore` traces does not come back to an earlier state.

    Smallest failing code: a `while` on a traced value that appends to a list in each iteration.
    Cure: keep what changes in arrays of fixed shapes and in numbers, or use `functx.lax.while_loop`.
    """


class IdentityTestError(FunctxError, RuntimeError):
    """Code under `explore` tests a traced boolean with `is True`, on a Python whose frames functx cannot read.

    Smallest failing code: `functx.explore(lambda x: x if (x > 0) is True else -x)(1.0)`, on Python 3.14.
    Cure: `if x > 0`, or `flag == True`; CPython 3.11 to 3.13 decide such comparisons.
    """


class ReplayError(FunctxError, RuntimeError):
    """A function that `explore` runs several times does not compute the same each time.

    Smallest failing code: a function that draws with Python's `random` before an `if` on a traced value.
    Cure: pass what varies as an argument, and leave out side effects.
    """


class BranchTypeError(FunctxError, TypeError):
    """The branches of a conditional return values of different types.

    Smallest failing code: `functx.lax.cond(True, lambda: 1, lambda: functx.numpy.ones(3))`.
    Cure: return the same structure, with leaves of the same shapes and dtypes.
    """


class CarryTypeError(FunctxError, TypeError):
    """The carry that the body of a loop returns has another type than the carry that it takes.

    Smallest failing code: `functx.lax.fori_loop(0, 3, lambda i, x: functx.numpy.ones(3), 0.0)`.
    Cure: start with a carry of the type that the body returns, or convert it in the body.
    """


class MissingRuleError(FunctxError, NotImplementedError):
    """A primitive lacks the rule that a transform needs.

    Smallest failing code: a `Primitive` without `jvp`, differentiated.
    Cure: define the rule that the message names, or `decompose`.
    """


class MissingHigherOrderRuleError(MissingRuleError):
    """A higher-order operation lacks the rule for a transform that it goes through.

    Smallest failing code: `functx.vmap(lambda x: op(f, x))(xs)` for a `HigherOrderOp` without a rule for
    vmap.
    Cure: define the rule that the message names with `def_rule`.
    """


class RuleError(FunctxError, TypeError):
    """A rule of a primitive returned a wrong result.

    Smallest failing code: a `transpose` that returns fewer cotangents than operands.
    Cure: return what the docstring of the rule in `Primitive` states.
    """


class DecompositionError(FunctxError, RuntimeError, TypeError):
    """A decomposition does not return the types of its primitive, or is not made of other primitives.

    Smallest failing code: `functx.decomp.register("silu")(functx.nn.silu); functx.nn.silu(1.0)`.
    Cure: return arrays of the stated types, computed from the operands by other primitives.
    """


class StaticArgumentError(FunctxError, ValueError, TypeError):
    """A static argument cannot be compared and hashed by value.

    Smallest failing code: `functx.jit(f, static_argnums=0)([1, 2])`.
    Cure: pass a hashable value, such as a tuple.
    """


class EffectError(FunctxError, TypeError):
    """A transform cannot keep the number or the order of the effects of a function.

    Smallest failing code: the reverse-mode derivative of `functx.checkpoint(f)` for an `f` that uses
    the result of an `io_callback`.
    Cure: keep the effect out of code that a derivative recomputes.
    """


class CheckError(FunctxError, ValueError):
    """A check of a value failed, outside of a compiled function or in `Error.throw`.

    Smallest failing code: `functx.checkify.check(False, "failed")`.
    Cure: mend what the message names.
    """


class UnhandledCheckError(FunctxError, ValueError):
    """A function with a check is compiled, or used where no check can be, without `checkify`.

    Smallest failing code: `functx.jit(lambda x: functx.checkify.check(x > 0, "negative"))(1.0)`.
    Cure: transform it first, `functx.jit(functx.checkify.checkify(f))`, which returns the failure.
    """


class AliasingEffectError(FunctxError, ValueError):
    """An effect was registered for an operator that writes to an argument or returns one.

    Smallest failing code: `functx.effects.register(op, functx.effects.ORDERED)` for an `op` defined with
    `mutates_args=("x",)`.
    Cure: let the operator return a new array, or leave out the effect: writes keep their order.
    """


class MissingTokenError(FunctxError, RuntimeError):
    """An operation with an effect has no token of that kind.

    Smallest failing code: `functx.aot.with_tokens(program, kinds=())` for a program with an ordered print.
    Cure: give a token for each kind of effect; `functx.aot.token_kinds(program)` lists them.
    """


class CallbackResultError(FunctxError, RuntimeError, ValueError, TypeError):
    """A callback returned other types than `result_shape_dtypes`.

    Smallest failing code: `functx.pure_callback(lambda: "one", jax.ShapeDtypeStruct((), "float32"))`.
    Cure: return a pytree of arrays of the shapes and dtypes in `result_shape_dtypes`.
    """


class FormatError(FunctxError, ValueError, IndexError, KeyError):
    """The fields of a format string do not match the arguments of `debug.print`.

    Smallest failing code: `functx.debug.print("{x}", y=1.0)`.
    Cure: name each argument in the string, and no other.
    """


class DonationError(FunctxError, ValueError, RuntimeError):
    """A donated array is used again, or is passed twice.

    Smallest failing code: `functx.jit(f, donate_argnums=0)(x); x + 1`.
    Cure: donate only arrays that are not used again.
    """


class NonFiniteError(FunctxError, FloatingPointError):
    """An operation returned nan or infinity while an option of JAX forbids it.

    Smallest failing code: `with jax.debug_nans(): functx.numpy.log(-1.0)`.
    Cure: keep the operand in the domain, for instance with `functx.numpy.where`.
    """


class ImmutableArrayError(FunctxError, TypeError, ValueError):
    """An array is written to in place where the write cannot be traced, or is read-only.

    Smallest failing code: `x[0] = 1.0` for a traced `x`.
    Cure: `x = x.at[0].set(1.0)`.
    """


class CapturedWriteError(FunctxError, RuntimeError):
    """A transformed function writes to a captured array, or NumPy does after the function has used it.

    Smallest failing code: `functx.grad(lambda x: buffer.__setitem__(0, x))(1.0)`, where `buffer` is
    traced outside.
    Cure: pass the array as an argument, or write to a copy.
    """

    state: object = None
    """The state of a `Ref` that is written to, if a caller may pass it."""


class ArgumentWriteError(FunctxError, RuntimeError):
    """A function with a custom rule, or the function of a solver, writes to its argument.

    Smallest failing code: a `custom_vjp` function with `x += 1.0` for its argument `x`.
    Cure: write to a copy, and return it.
    """


class RandomnessError(FunctxError, ValueError, RuntimeError):
    """The elements of a batch draw from a generator, and `vmap` was not told what they should draw.

    Smallest failing code: `functx.vmap(lambda x: x + functx.random.rand(()))(numpy.ones(3))`.
    Cure: pass `randomness="same"` or `randomness="different"`; with "same", parameters of draws must
    be the same for all elements.
    """


class GeneratorError(FunctxError, ValueError, TypeError):
    """A generator, or the state of one, is not what the function takes.

    Smallest failing code: `functx.random.set_state(numpy.zeros(3))`.
    Cure: pass a `functx.random.Generator`, and states that `get_state` returned.
    """


class SeedTypeError(FunctxError, TypeError):
    """The seed of a generator is no int.

    Smallest failing code: `functx.random.Generator(1.5)`.
    Cure: pass an int from 0 to 2**64 - 1.
    """


class ImplicitDrawError(FunctxError, RuntimeError):
    """A function draws from a generator where the state of the generator cannot be passed to it.

    Smallest failing code: `jax.jit(lambda: functx.random.rand(3))()`.
    Cure: use the transforms of functx, or draw with a key.
    """

    state: object = None
    """The state that is drawn from, if a caller may pass it."""


class FunctionalizeError(FunctxError, ValueError, RuntimeError):
    """The argument `remove` of `functionalize` is not known.

    Smallest failing code: `functx.functionalize(f, remove="views")`.
    Cure: pass "mutations" or "mutations_and_views".
    """


class ProgramError(FunctxError, TypeError, ValueError):
    """A program is not well-formed: a variable is out of scope, or an output has another type.

    Smallest failing code: `program.replace(eqn)` while the output of `eqn` is still used.
    Cure: define every variable once, before its first use, with the type it states.
    """


class OperatorNameError(FunctxError, ValueError):
    """The name of a custom operator is not valid, is reserved, or differs from that of its function.

    Smallest failing code: `functx.custom_op("scale", mutates_args=())`.
    Cure: name it `namespace::name`, with a namespace of your own.
    """


class SchemaError(FunctxError, ValueError):
    """The schema of a custom operator cannot be inferred, or does not fit its function.

    Smallest failing code: `functx.library.infer_schema(lambda x: x, mutates_args=())`.
    Cure: annotate every argument and the result with a type that the message lists, or give a schema.
    """


class RegistrationError(FunctxError, RuntimeError, ValueError):
    """A rule was registered twice, or for an object that does not exist or cannot have it.

    Smallest failing code: `op.impl("cpu")(f); op.impl("cpu")(g)` for a custom operator;
    `functx.decomp.register("softmax", table="backward")`.
    Cure: register each rule once, or pass `allow_override=True` (of a decomposition,
    `exist_ok=True`); use a name that the message lists.
    """


class KeywordOnlyArrayError(FunctxError, NotImplementedError):
    """A custom operator has a keyword-only array argument; rules take arrays by position.

    Smallest failing code: an operator of a function `f(x: Array, *, y: Array) -> Array`.
    Cure: take every array by position.
    """


class MissingKernelError(FunctxError, NotImplementedError):
    """A custom operator has no implementation for the device, or no abstract rule.

    Smallest failing code: an operator with `device_types="gpu"`, called on the CPU.
    Cure: register the missing function with `impl` or `def_abstract`.
    """


class NoAutogradFormulaError(MissingRuleError):
    """A custom operator without a derivative rule is differentiated.

    Smallest failing code: `functx.grad(op)(1.0)` for an operator without rules.
    Cure: `register_autograd`, `save_for_backward` with `backward`, or `def_jvp`; or take
    `stop_gradient` of its arguments.
    """


class OperatorRuleError(FunctxError, RuntimeError):
    """A rule or an implementation of a custom operator returned a wrong result.

    Smallest failing code: a `backward` that returns an array where a dictionary is expected.
    Cure: return the types that the message states.
    """


class DynamicShapeError(FunctxError, RuntimeError):
    """The shape of the result of a custom operator depends on values inside a transform.

    Smallest failing code: `functx.jit(op)(x)` where the abstract rule of `op` calls
    `new_dynamic_size()`.
    Cure: call it outside of transforms, or give the size a `max`, to which results are padded.
    """


class CompilerFunctionError(FunctxError, TypeError):
    """A compiler of `functx.aot.aot_function` is no function, or returns nothing that can be called.

    Smallest failing code: `functx.aot.aot_function(f, fw_compiler=3)`.
    Cure: pass a function that takes a program and returns a function of the list of its inputs, or a
    program; nothing stands for `functx.aot.default_compiler`.
    """


class CompiledResultError(FunctxError, TypeError):
    """The function that a compiler returned gave values of another number, shape or dtype than its program.

    Smallest failing code: `functx.aot.aot_function(f, lambda program: lambda values: [])(x)`.
    Cure: return the outputs of the program, in its order.
    """


class StrictCallError(FunctxError, RuntimeError, AssertionError):
    """A strict `aot_function` was called with other same arrays, or more gradients, than it was compiled for.

    Smallest failing code: `f(x, x); f(x, y)` with `f = functx.aot.aot_function(g, strict=True)`.
    Cure: pass arrays in the same pattern, or leave `strict` out, so that another pattern is compiled.
    """


class OutputCountError(FunctxError, ValueError):
    """A function returned another number of outputs than it had when it was analysed.

    Smallest failing code: `aot.fn_prepped_for_autograd(lambda x: (x, x), aot.analyze(abs)(1.0))(1.0)`.
    Cure: analyse the function that is called, with arguments of the same structure and types.
    """


class OutputMaskError(FunctxError, ValueError):
    """The function of a joint function does not return a pair of outputs and a mask that fits them.

    Smallest failing code: `aot.create_joint(lambda x: ([x, x], [True]))([1.0], [1.0])`.
    Cure: return `(outputs, mask)`, with a bool for each output, as `aot.fn_prepped_for_autograd` does.
    """


class TangentCountError(FunctxError, ValueError):
    """A joint function was called with another number of tangents than outputs that take one.

    Smallest failing code: `aot.create_joint(lambda x: ([x * x], [True]))([1.0], [])`.
    Cure: pass a tangent for each output whose mask is True, None for zero.
    """


class LossOutputError(FunctxError, ValueError):
    """A joint function without tangents has other outputs with gradients than one single number.

    Smallest failing code: `aot.create_joint(lambda x: ([x], [True]), loss_only=True)([numpy.ones(3)])`.
    Cure: return the loss as the only output whose mask is True, as an array of one element.
    """


class BackwardWriteError(FunctxError, RuntimeError):
    """The backward part of a joint function writes to an array that it must not change.

    Smallest failing code: a function of `(primals, tangents)` that does `tangents[0] *= 2.0` in
    `aot.program_part(aot.Part.BACKWARD)`, functionalized by `aot.create_functionalized_fn`.
    Cure: write to inputs that need no gradient alone, or to a copy (`x.copy()`).
    """


class AutogradError(FunctxError, RuntimeError):
    """A Variable, or a walk backwards, does not allow the request.

    Smallest failing code: `functx.autograd.Variable(1.0).backward()`.
    Cure: the message states it; most often `requires_grad=True`, or `retain_graph=True`.
    """


class NoHistoryError(AutogradError):
    """An output or an input of a walk does not require a gradient.

    Smallest failing code: `functx.autograd.Variable(1.0).backward()`.
    Cure: make a leaf with `requires_grad=True`, and compute the output from it with gradients on.
    """


class EmptyOutputsError(AutogradError):
    """`autograd.grad` got no outputs.

    Smallest failing code: `functx.autograd.grad([], x)`.
    Cure: pass at least one output.
    """


class UnusedInputError(AutogradError):
    """The outputs of `autograd.grad` do not depend on an input.

    Smallest failing code: `functx.autograd.grad(x * x, [y])`, for another leaf `y`.
    Cure: pass `allow_unused=True`, which gives None for it, or `materialize_grads=True`, which gives zeros.
    """


class ImplicitGradientError(AutogradError):
    """The gradient of an output that is not one real element was left out.

    Smallest failing code: `(x * x).backward()`, for an `x` of two elements.
    Cure: reduce the output to a real number (`y.sum()`), or pass its gradient.
    """


class GradientMismatchError(AutogradError):
    """A gradient that was given has not the shape of its output, or only one of the two is complex.

    Smallest failing code: `functx.autograd.grad(x * x, x, numpy.ones(3))`, for an `x` of two elements.
    Cure: pass a gradient of the shape that the message names; with `is_grads_batched`, the batch is its
    first axis.
    """


class GradientCountError(AutogradError):
    """There are more or fewer gradients than outputs.

    Smallest failing code: `functx.autograd.grad([y, z], x, [gradient])`.
    Cure: pass a gradient or None for each output.
    """


class ContradictingOptionsError(AutogradError, ValueError):
    """Two arguments of `autograd.grad` or `backward` contradict each other.

    Smallest failing code: `functx.autograd.grad(y, x, allow_unused=False, materialize_grads=True)`.
    Cure: leave one of the two out.
    """


class AutogradInTransformError(AutogradError, AttributeError):
    """A method that changes gradients or their graph was called inside a transform, on traced values.

    Smallest failing code: `functx.grad(lambda x: (x * x).backward())(1.0)`.
    Cure: use the function that the message names: `functx.grad`, `functx.vjp` or `functx.hook_grad`.
    """


class CapturedWalkError(AutogradError):
    """A captured walk was compiled as a whole, called with other lists than it was given, changed by a
    hook, or reset while it runs.

    Smallest failing code: `functx.compiled_autograd.reset()` in a hook of a compiled walk.
    Cure: call the compiled program with the five lists that it is given, or run the walk under
    `functx.compiled_autograd.disable()`.
    """


class WalkCompilerError(AutogradError, TypeError):
    """The compiler function of compiled autograd is no function, or returns none.

    Smallest failing code: `functx.compiled_autograd.enable(3)`.
    Cure: pass a function that takes a captured program and returns a function of its five lists.
    """


class WalkResultError(AutogradError):
    """The function that a compiler function returned gave results of another number, shape or dtype.

    Smallest failing code: `autograd.grad(x * x, x)` for `x = Variable(1.0, requires_grad=True)`, under
    `functx.compiled_autograd.enable(lambda program: lambda *lists: [])`.
    Cure: return the gradients that the program returns, in its order.
    """


class LostDerivativeError(AutogradError):
    """An array without history is to hold a value with a derivative, or a gradient inside a transform
    would lack a part that belongs outside.

    Smallest failing code: `functx.numpy.ones(2)[:] = x`, for `x = Variable([1.0, 2.0],
    requires_grad=True)`.
    Cure: make that array a Variable, or write `x.detach()`; compute all of it inside the transform.
    """


class LeafWriteError(AutogradError):
    """A leaf that requires a gradient, or a view of one, is written to in grad mode.

    Smallest failing code: `x[0] = 1.0`, for `x = Variable([1.0, 2.0], requires_grad=True)`.
    Cure: write under `functx.autograd.no_grad()`, or to a copy (`x.copy()`).
    """


class ViewWriteError(AutogradError):
    """A view whose history does not allow it is written to in grad mode.

    It was made under `no_grad`, or by an operation with several results such as `split`. One made under
    `no_grad` must not be read in grad mode either, after a write to its memory that has a derivative.

    Smallest failing code: `first, second = numpy.split(x * 2, 2); first += 1`, for a leaf `x`.
    Cure: take the view with an index, outside `no_grad`, or write to a copy.
    """


class GradAssignmentError(AutogradError):
    """The array assigned to `x.grad` differs from `x` in shape or dtype, or is `x` itself.

    Smallest failing code: `x.grad = numpy.ones(3)`, for an `x` of two elements.
    Cure: assign an array of the shape and dtype of `x`, or None.
    """


class RequiresGradError(AutogradError):
    """`requires_grad` was set for integers, or switched off for a value that was computed.

    Smallest failing code: `functx.autograd.Variable([1, 2], requires_grad=True)`.
    Cure: convert the array to floating point first; `x.detach()` has no history.
    """


class CallbackError(AutogradError):
    """`autograd.queue_callback` was called while no walk runs.

    Smallest failing code: `functx.autograd.queue_callback(print)`.
    Cure: call it in a hook, or in the `backward` of a `Function`.
    """


class CallbackWriteError(AutogradError):
    """A callback writes to a Variable of the step under `jit` that runs, or adds to a gradient of it.

    Smallest failing code: `functx.pure_callback(f, y, y)` in a step, for an `f` that calls `x.sum().backward()`
    for an `x` whose gradient the step changes too.
    Cure: return the value from the callback, and add it in the step.
    """


class AnomalyError(AutogradError):
    """A pullback gave nan while `autograd.detect_anomaly` was on.

    Smallest failing code: under `functx.autograd.detect_anomaly()`, `(functx.numpy.sqrt(x) * 0).backward()`
    for an `x` that is 0.
    Cure: look at the source lines in the warning before it; often a `where` before the operation helps.
    """


class DualLevelError(AutogradError):
    """A level of `autograd.forward_ad` is not open, is not the open one, or is opened twice.

    Smallest failing code: `functx.autograd.forward_ad.exit_dual_level()`.
    Cure: work inside one `with functx.autograd.forward_ad.dual_level():`.
    """


class DualValueError(AutogradError, ValueError):
    """The two parts of a dual number do not fit each other, or are no inexact arrays.

    Smallest failing code: `forward_ad.make_dual(x, t)` inside a level, for an `x` of integers.
    Cure: give a tangent of the shape and dtype of the primal.
    """


class EmptyInputsError(AutogradError, ValueError):
    """`autograd.grad`, `backward` or `gradcheck` was asked for the gradients of no inputs.

    Smallest failing code: `functx.autograd.grad(y, [])`.
    Cure: pass at least one input; `backward` without `inputs` takes all leaves.
    """


class GradientTypeError(AutogradError, TypeError):
    """A gradient that a user gave, or that a hook returned, is no array.

    Smallest failing code: `y.backward("one")`.
    Cure: return or pass an array, a Variable, or None.
    """


class HookTargetError(AutogradError):
    """A hook was registered, or `retain_grad` called, where there is no gradient for it.

    Smallest failing code: `functx.autograd.Variable(1.0).register_hook(print)`.
    Cure: make a leaf with `requires_grad=True`; post-accumulate hooks are for leaves alone.
    """


class HookResultError(AutogradError):
    """A hook returned a gradient of another shape or dtype, or another number of gradients.

    Smallest failing code: `x.register_hook(lambda gradient: gradient[:1])`, and a walk.
    Cure: return gradients of the types that the hook gets, or None to leave them.
    """


class InferenceArrayError(AutogradError):
    """An array made under `autograd.inference_mode` was used where only normal arrays can be.

    Smallest failing code: `y._version`, for a `y` computed under `functx.autograd.inference_mode()`.
    Cure: use a copy made outside the mode (`y.copy()`).
    """


class HookModeError(AutogradError, ValueError):
    """The mode of `register_multi_grad_hook` is neither "all" nor "any".

    Smallest failing code: `functx.autograd.register_multi_grad_hook([x], print, mode="one")`.
    Cure: pass "all" to wait for all gradients, "any" to see the first one.
    """


class CheckpointError(AutogradError):
    """A recomputation under `autograd.checkpoint` differs from the first call, or is refused.

    Smallest failing code: `checkpoint(f, x).backward()`, where `f` counts its calls and computes
    `x * x` in the first and `x` in the second.
    Cure: let the function compute the same each time; pass `use_reentrant=False` with `autograd.grad`.
    """


class SavedValueHooksError(AutogradError):
    """A pair of hooks for saved values is not allowed there, or a hook does what it must not.

    Smallest failing code: `with disable_saved_tensors_hooks("no"): save_on_cpu().__enter__()`.
    Cure: the message states it; a saved value has one pair, and contexts that allow writes do not nest.
    """


class UnpackedTypeError(AutogradError, TypeError):
    """The `unpack` of `saved_tensors_hooks` did not return an array.

    Smallest failing code: a walk of `x * x`, recorded in `saved_tensors_hooks(str, len)`.
    Cure: return a Variable or an array of the shape and dtype of the value that `pack` got.
    """


class SavedValueError(AutogradError):
    """A value that a derivative needs was written to, or freed, before the walk.

    Smallest failing code: `y = x * 2; z = (y * y).sum(); y += 1; z.backward()`.
    Cure: write to a copy (`y = y + 1`), or after the walk.
    """


class FreedValueError(SavedValueError):
    """A value that a derivative needs was freed by the walk before.

    Smallest failing code: `y = (x * x).sum(); y.backward(); y.backward()`.
    Cure: walk with `retain_graph=True` the first time.
    """


class OverlappingViewError(ImmutableArrayError, AutogradError):
    """A view of a Variable that repeats elements, or is read-only, is written to.

    Smallest failing code: `numpy.broadcast_to(x, (2, 2))[0] = 1.0`, for a Variable `x`.
    Cure: write to a copy (`x.copy()`).
    """


class FunctionError(AutogradError):
    """A subclass of `autograd.Function` is not used, or not defined, as it must be.

    Smallest failing code: `functx.autograd.Function()()`.
    Cure: call `apply` of the class, and define what the message names.
    """


class FunctionMethodError(FunctionError, NotImplementedError):
    """A subclass of `autograd.Function` lacks a method that is needed.

    Smallest failing code: `functx.autograd.Function.apply(1.0)`.
    Cure: define the static method that the message names.
    """


class FunctionGradientError(AutogradError):
    """`backward` or `jvp` of a `Function` returned a wrong number of gradients, or a wrong shape.

    Smallest failing code: a `backward` that returns two gradients for one input.
    Cure: return one gradient, or None, for each input, of the shape of the input.
    """


class FunctionContextError(AutogradError):
    """A `Function` marked an array in a way that is not possible.

    Smallest failing code: a `forward` that calls `ctx.mark_dirty(x)` and does not return `x`.
    Cure: mark and save inputs and outputs as the message states.
    """


class OnceDifferentiableError(AutogradError):
    """A `Function` whose `backward` is marked `once_differentiable` was differentiated twice.

    Smallest failing code: `grad` of a gradient that `grad(y, x, create_graph=True)` returned.
    Cure: take `once_differentiable` away, if all that `backward` does can be differentiated.
    """


class FunctionalArgumentError(AutogradError):
    """The arguments of a function of `autograd.functional`, or what its function returns, do not fit.

    Smallest failing code: `functx.autograd.functional.hessian(lambda x: x, numpy.ones(2))`.
    Cure: give a vector of the shape that the message names, or return one array of one element.
    """


class FunctionalTypeError(AutogradError, TypeError):
    """An argument of a function of `autograd.functional`, or a result of its function, is no array.

    Smallest failing code: `functx.autograd.functional.vjp(lambda x: "one", numpy.ones(2))`.
    Cure: pass and return arrays or tuples of arrays; make them of numbers with `autograd.Variable`.
    """


class IndependenceError(AutogradError):
    """With `strict`, a derivative in `autograd.functional` is zero since nothing depends on the input.

    Smallest failing code: `jacobian(lambda x: numpy.ones(2), x, strict=True)`.
    Cure: let the function use the input, or leave `strict` out, which gives zeros.
    """


class StrategyError(AutogradError, ValueError):
    """The strategy of a function of `autograd.functional` is neither "forward-mode" nor "reverse-mode".

    Smallest failing code: `functx.autograd.functional.jacobian(f, x, strategy="backward")`.
    Cure: pass one of the two names.
    """


class UnsupportedStrategyError(AutogradError, NotImplementedError):
    """Forward mode in `autograd.functional` was asked for what it does not do.

    Smallest failing code: `functx.autograd.functional.jacobian(f, x, strategy="forward-mode")`.
    Cure: pass `vectorize=True` without `create_graph`, or `strategy="reverse-mode"`.
    """


class ModuleAttributeError(FunctxError, TypeError):
    """An assignment to an attribute of a module would lose a parameter, a buffer or a submodule.

    Smallest failing code: `module.weight = module.weight * 2`.
    Cure: write in place under `functx.autograd.no_grad()`, or assign an `nn.Parameter`.
    """


class MissingForwardError(FunctxError, NotImplementedError):
    """A module was called whose class does not define `forward`.

    Smallest failing code: `functx.nn.Module()(1.0)`.
    Cure: define `forward(self, ...)` in the class.
    """


class StateKeysError(FunctxError, RuntimeError):
    """The keys of a state are not those of the parameters and buffers of the module.

    Smallest failing code: `functx.functional_call(module, {}, x, strict=True)` of a module with a parameter.
    Cure: give exactly the keys of `module.named_parameters()` and `named_buffers()`, or `strict=False`.
    """


class StateShapeError(FunctxError, RuntimeError, ValueError):
    """A value of a loaded state has another shape than the parameter or buffer that it replaces.

    Smallest failing code: `module.load_state_dict({"weight": numpy.ones(3)})` of a weight of shape (2,).
    Cure: load the state of a module of the same sizes.
    """


class ModuleTypeError(FunctxError, TypeError):
    """A functional call was given an object that is no module.

    Smallest failing code: `functx.functional_call(3, {}, x)`.
    Cure: pass an `nn.Module`, an object with `__functx_state__`, or a pytree that can be called.
    """


class StateItemsError(FunctxError, ValueError):
    """The state of a functional call is no dictionary, no dictionaries and no pairs, or mixes them.

    Smallest failing code: `functx.functional_call(module, [{"weight": w}, ("bias", b)], x)`.
    Cure: pass one dictionary, several, or pairs of a name and a value.
    """


class DuplicateKeysError(FunctxError, ValueError):
    """Two dictionaries, or two pairs, of the state of a functional call have the same name.

    Smallest failing code: `functx.functional_call(module, ({"weight": v}, {"weight": w}), x)`.
    Cure: remove the name from all of them but one.
    """


class TiedValuesError(FunctxError, ValueError):
    """Parameters that a module ties, which are one array under several names, got different values.

    Smallest failing code: `functx.functional_call(module, {"a": v, "b": w}, x)` where `module.b is module.a`.
    Cure: give one of them, or pass `tie_weights=False`.
    """


class FunctionalCallCountError(FunctxError, ValueError):
    """The number of flat parameters is not the one that the function or its structure has.

    Smallest failing code: `functx.create_functional_call(module, spec, 2)` where `spec` has three leaves.
    Cure: pass `flat, spec = functx.tree.flatten(parameters)`, and `len(flat)`.
    """


class OutputTupleError(FunctxError, RuntimeError):
    """A module that is called with flat parameters returned neither a tuple nor a list.

    Smallest failing code: `functx.create_functional_call(module, spec, n)(*flat, x)`, where `module` returns an array.
    Cure: return `(out,)` from its `forward`, or use `functx.functional_call`.
    """


class ReplacedStateError(FunctxError, RuntimeError):
    """A program for later calls was asked for inside a functional call, whose values end with it.

    Smallest failing code: `jitted.lower(x)` in the `forward` of a module that `functx.functional_call` calls.
    Cure: lower a function that takes the state, and calls `functx.functional_call` itself.
    """


class StackingError(FunctxError, RuntimeError):
    """Modules whose states are stacked differ in class, mode, names, shapes or flags, or there are none.

    Smallest failing code: `functx.stack_module_state([])`.
    Cure: stack modules of one class, of the same sizes and in one mode.
    """


class GradcheckError(FunctxError, RuntimeError):
    """`functx.testing.gradcheck` found a derivative that differs from finite differences.

    Smallest failing code: `gradcheck(f, (x,))` where `f` has a rule with a wrong factor.
    Cure: correct the rule; the message shows both derivatives.
    """


class GradcheckModeError(FunctxError, ValueError, AssertionError):
    """The arguments of `gradcheck` exclude a mode that another argument requires, or all modes.

    Smallest failing code: `gradcheck(f, (x,), check_backward_ad=False)`.
    Cure: pass `check_forward_ad=True`, or leave `check_backward_ad` on.
    """


class OpCheckError(FunctxError, AssertionError):
    """A check of `functx.testing.opcheck` failed.

    Smallest failing code: `opcheck(op, (x,))` where the abstract rule returns another shape.
    Cure: correct the rule that the message names.
    """


class VerificationError(FunctxError, AssertionError):
    """`functx.testing.verify` found two executions of a program with different values.

    Smallest failing code: `functx.testing.verify(f)(x)` where a rule lowers to another operation.
    Cure: correct the pass or the rule that the message names; it shows the smallest program that differs.
    """


class ParseError(FunctxError, ValueError):
    """A text is not a printed program.

    Smallest failing code: `functx.Program.parse("hello")`.
    Cure: pass the result of `str(program)`, edited within its grammar.
    """


class ExportError(FunctxError, RuntimeError):
    """A function, a module or one of its values cannot be exported or saved.

    Smallest failing code: `functx.export.export(f)(x).save(path)` where `f` calls `pure_callback`.
    Cure: do what the message says; what calls Python cannot be saved, and belongs around the function.
    """


class UnregisteredNameError(ExportError):
    """A saved program uses an operator, a primitive or a pytree class that is not registered.

    Smallest failing code: `functx.export.load(path)` without the import that defines its operator.
    Cure: import the module that registers the name before the file is loaded.
    """


class ExportFileError(FunctxError, ValueError):
    """A file of a saved program is cut, altered, newer than this version, or no such file.

    Smallest failing code: `functx.export.deserialize(data[:-1])` where `data` was serialized.
    Cure: save the program again, or update functx.
    """


class MissingExtraError(FunctxError, ImportError):
    """A function needs a package that functx does not install by itself, and it is missing.

    Smallest failing code: `functx.tools.picture(functx.numpy.sin)(1.0)._repr_svg_()` without igraph.
    Cure: install the package that the message names, as in `pip install igraph`.
    """


class MemoryBudgetWarning(FunctxError, UserWarning):
    """A derivative needs more memory than `jit(memory=)` or `config.memory` allows.

    Smallest failing code: `functx.jit(functx.grad(f), memory=1)(x)`.
    Cure: raise the budget to the size in the message, or differentiate smaller batches.
    """


class RecompilationWarning(FunctxError, UserWarning):
    """One line of code has compiled a function many times, or captured many backward walks.

    Smallest failing code: `for n in range(1, 9): functx.jit(f)(functx.numpy.ones(n))`.
    Cure: pass arguments of few types, and jit a function once; the message states the difference.
    """


def short_repr(value: object) -> str:
    """The repr of an argument for messages; traced arrays are shown by type, without their values."""
    described = getattr(value, "describe", None)
    if described is not None and hasattr(value, "builder"):
        return str(described())
    if type(value) is tuple or type(value) is list:
        ends = "()" if type(value) is tuple else "[]"
        comma = "," if ends == "()" and len(value) == 1 else ""
        return f"{ends[0]}{', '.join(map(short_repr, value))}{comma}{ends[1]}"
    return repr(value)


def type_name(value: object) -> str:
    """The type of a value for messages: the short form of its aval, else its class."""
    # An array of NumPy computes its aval, which fails for strings and objects.
    is_numpy = isinstance(value, np.ndarray)
    aval = None if is_numpy else getattr(getattr(value, "atom", value), "aval", None)
    if aval is not None and hasattr(aval, "weak_type"):
        return repr(aval)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    return type(value).__name__


def describe_input(builder: Builder, tracer: Tracer) -> str:
    """`argument x: f32[3] of jit(f)`: the input `tracer` of a builder, for messages."""
    if tracer.atom not in builder.inputs:
        captured = builder.captured_value(tracer.atom)
        return f"{getattr(captured, 'description', 'a state')} that {builder.owner} captures"
    position = builder.inputs.index(tracer.atom)  # type: ignore[arg-type]
    names = builder.in_names
    given = names() if names is not None else []
    name = f"`{given[position]}`" if position < len(given) else f"number {position}"
    return f"argument {name}: {tracer.atom.aval!r} of {builder.owner}"

"""Names, lifetimes and schemas of custom operators."""

import pickle
import typing
from collections.abc import Sequence
from numbers import Number
from typing import Optional

import jax
import numpy
import pytest

import functx
from functx import Array, custom_op, library
from functx.core.errors import (
    ArgumentError,
    KeywordOnlyArrayError,
    OperatorNameError,
    RegistrationError,
    SchemaError,
)
from tests.custom.operators import opaque, scope  # noqa: F401


def double(x: Array) -> Array:
    """Twice `x`."""
    return x * 2


def test_an_operator_is_called_by_its_name_and_looks_like_its_function():
    op = custom_op("test::double", double)
    assert op(numpy.ones(2)).tolist() == [2.0, 2.0]
    assert op.__name__ == "double" and op.__doc__ == "Twice `x`." and op.__module__ == __name__
    assert repr(op) == "<operator test::double(Array x) -> Array>"
    assert library.get("test::double") is op


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("double", "must have a namespace; got 'double'"),
        ("a::b::double", "must have one `::`"),
        ("test::double.out", "the name must be an identifier; got 'double.out'.*with a dot"),
        ("te.st::double", "the namespace must be an identifier; got 'te.st'.*with a dot"),
        ("::double", "the namespace must be an identifier; got ''"),
        ("test::", "the name must be an identifier; got ''"),
        *[(f"{ns}::double", f"{ns}', which is reserved") for ns in
          ("functx", "prim", "jax", "lax", "core")],
        (3, "must be a string namespace::name; got int"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(name, message):
    for make in (custom_op, library.define):
        with pytest.raises(OperatorNameError, match=message) as caught:
            make(name)
        assert isinstance(caught.value, ValueError)


def test_the_form_of_a_name_is_shown_where_there_is_no_namespace():
    with pytest.raises(ValueError, match='Name it "your_project::double"'):
        custom_op("double", double)


@pytest.mark.parametrize("given", [3, int, "double"])
def test_an_operator_must_be_made_of_a_function(given):
    with pytest.raises(ValueError, match=f"must be made of a function; got {type(given).__name__}"):
        custom_op("test::double")(given)


def test_a_declared_operator_has_the_name_of_its_function():
    with pytest.raises(ValueError, match=r"must have one name; got 'twice' and 'double'") as caught:
        library.define("test::twice")(double)
    assert "Call the function twice, or the operator double." in str(caught.value)
    assert library.define("test::double")(double).__name__ == "double"
    assert custom_op("test::anything", double).__name__ == "anything"


def test_an_operator_is_defined_once():
    custom_op("test::double", double)
    with pytest.raises(RuntimeError, match=r"'test::double' would be defined more than once") as e:
        custom_op("test::double", double)
    assert isinstance(e.value, RegistrationError)
    assert "it was defined at test_operators_definition.py:" in str(e.value)


def test_a_destroyed_operator_cannot_be_used_and_its_name_is_free():
    old = custom_op("test::double", double)
    library.destroy("test::double")
    for use in (lambda: old(1.0), lambda: old.def_abstract(lambda x: x)):
        with pytest.raises(RuntimeError, match=r"test::double: .* after it was destroyed"):
            use()
    new = custom_op("test::double", lambda x: x * 3, schema="(Array x) -> Array")
    assert new(1.0) == 3.0
    with pytest.raises(OperatorNameError, match=r"got 'test::nothing'"):
        library.destroy("test::nothing")


def test_an_override_replaces_an_operator_and_its_handles():
    old = custom_op("test::double", double)
    new = custom_op("test::double", lambda x: x * 3, schema="(Array x) -> Array",
                    allow_override=True)  # fmt: skip
    assert new(1.0) == 3.0
    with pytest.raises(RuntimeError, match=r"after it was destroyed"):
        old(1.0)


def test_a_scope_undoes_definitions_overrides_and_rules():
    old = custom_op("test::double", double)
    old.def_abstract(lambda x: x)
    program = str(functx.make_ir(old)(1.0))
    with library.scoped():
        opaque("test::only_here")
        new = custom_op("test::double", lambda x: x * 3, schema="(Array x) -> Array",
                        allow_override=True)  # fmt: skip
        assert new(1.0) == 3.0
    assert old(1.0) == 2.0 and functx.jit(old)(1.0) == 2.0
    assert float(functx.Program.parse(program)(1.0)) == 2.0
    with pytest.raises(OperatorNameError):
        library.get("test::only_here")
    assert "test::only_here" not in functx.Primitive.registry


def test_operators_are_made_only_by_the_factory():
    with pytest.raises(RuntimeError, match=r"made by functx.custom_op or functx.library.define"):
        library.Operator("test::double", library.Schema.parse("(Array x) -> Array"), double)


def test_an_operator_travels_by_its_name():
    op = opaque()
    assert pickle.loads(pickle.dumps(op)) is op
    program = functx.make_ir(op)(1.0)
    assert pickle.loads(pickle.dumps(program)) == program


FLOAT, ONES = numpy.dtype("float32"), numpy.ones(3)


def everything(
    x: Array,
    y: functx.numpy.ndarray | None,
    z: numpy.ndarray,
    xs: Sequence[Array],
    ys: list[Optional[Array]],  # noqa: UP045
    a: int = 1,
    b: float = 2.5,
    c: bool = True,
    d: str = "left",
    e: Number = 3j,
    f: numpy.dtype = FLOAT,
    g: Optional[jax.Device] = None,  # noqa: UP045
    h: int | None = None,
    i: Sequence[int] = (1, 2),
    j: typing.List[float] = (0.5,),  # noqa: UP006
    *,
    k: list[bool],
    m: "float" = 0.0,
) -> tuple[Array, list[Array], int, float, bool, Number]: ...


def test_a_schema_is_inferred_from_annotations():
    schema = library.infer_schema(everything, mutates_args={"z"})
    assert str(schema) == (
        "(Array x, Array? y, Array(a!) z, Array[] xs, Array?[] ys, int a=1, float b=2.5, "
        "bool c=True, str d='left', Number e=3j, dtype f=f32, device? g=None, int? h=None, "
        "int[] i=[1, 2], float[] j=[0.5], *, bool[] k, float m=0.0) "
        "-> (Array, Array[], int, float, bool, Number)"
    )
    assert library.Schema.parse(str(schema)) == schema


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(Array, "Array"), (list[Array], "Array[]"), (int, "int"), (tuple[Array], "(Array)"),
     (tuple[Array, int], "(Array, int)"), (None, "()")],
)  # fmt: skip
def test_types_of_results_are_inferred(annotation, text):
    def fun(x: Array): ...

    fun.__annotations__["return"] = annotation
    assert str(library.infer_schema(fun)) == f"(Array x) -> {text}"


def _of(annotation, result=Array):
    def fun(x): ...

    fun.__annotations__ = {"x": annotation, "return": result}
    return fun


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda x: x, "every parameter must have an annotation; got none for `x`"),
        (_of(Array, ...), "a result must be of a type that an operator returns; got Ellipsis"),
        (_of(set), "`x` must be of a type that an operator takes; got set"),
        (_of(list[Array] | None), "`x` must be of a type that an operator takes"),
        (_of(Optional[dict]), "`x` must be of a type that an operator takes"),  # noqa: UP045
        (_of("Unknown"), "got 'Unknown' for `x`"),
        (_of(Array, tuple[Array, ...]), "a tuple of results must have a known length"),
        (_of(Array, str), "a result must be of a type that an operator returns; got str"),
        (_of(Array, Array | None), "a result must be of a type that an operator returns"),
    ],
)
def test_types_that_operators_do_not_take_are_refused(fun, message):
    with pytest.raises(SchemaError, match=message) as caught:
        library.infer_schema(fun, mutates_args=())
    assert isinstance(caught.value, ValueError)


def test_a_result_without_annotation_is_refused():
    def fun(x: Array):
        return x

    with pytest.raises(ValueError, match=r"the result must have an annotation; got none"):
        custom_op("test::fun", fun)


def test_parameters_without_a_number_or_a_name_are_refused():
    def many(*xs: Array) -> Array: ...
    def named(**xs: Array) -> Array: ...
    def placed(x: Array, /) -> Array: ...

    for fun, shown in ((many, r"\*xs"), (named, r"\*\*xs"), (placed, "x, /")):
        with pytest.raises(ValueError, match=f"got `{shown}`, which is not supported"):
            library.infer_schema(fun)


def test_a_list_is_suggested_only_for_a_tuple_of_one_type():
    for annotation, wanted in (
        (tuple[int, int], "list[int]"),
        (tuple[int, ...], "list[int]"),
        (tuple[Array, Array], "list[Array]"),
        (tuple[int, int] | None, "Optional[list[int]]"),
    ):
        with pytest.raises(ValueError) as caught:
            library.infer_schema(_of(annotation))
        assert f"Use {wanted} in place of the tuple." in str(caught.value)
    for annotation in (tuple[int, float], tuple[Array, Array] | None):
        with pytest.raises(ValueError) as caught:
            library.infer_schema(_of(annotation))
        assert "in place of the tuple" not in str(caught.value)


def test_a_default_that_a_schema_cannot_show_is_refused():
    def fun(x: Array = ONES) -> Array: ...

    with pytest.raises(ValueError, match=r"the default of `x` must be None, a number"):
        library.infer_schema(fun)


def test_sequences_are_lists_to_the_implementation_and_a_tuple_of_one_stays_one():
    seen = []

    @custom_op("test::one")
    def one(xs: Sequence[Array], ns: Sequence[int]) -> tuple[Array]:
        seen.append((type(xs), type(ns)))
        return (xs[0] * ns[0],)

    out = one((numpy.ones(2), numpy.ones(2)), (3, 4))
    assert seen == [(list, list)]
    assert type(out) is tuple and out[0].tolist() == [3.0, 3.0]


def test_a_schema_may_be_given_instead_of_annotations():
    @custom_op("test::shifted", schema="(Array x, float by=1.0, *, bool twice=False) -> Array")
    def shifted(x, by, *, twice):
        return x + by * (2 if twice else 1)

    assert shifted(1.0) == 2.0 and shifted(1.0, 3.0, twice=True) == 7.0

    other = custom_op("test::other", schema=shifted.schema)(lambda x, by, *, twice: x)
    assert other.schema == shifted.schema


def test_words_of_pytorch_are_read():
    text = "(Tensor x, Tensor(a!)[] xs, SymInt n=3, Scalar? s=None, ScalarType t=f32) -> Tensor[]"
    assert str(library.Schema.parse(text)) == (
        "(Array x, Array(a!)[] xs, int n=3, Number? s=None, dtype t=f32) -> Array[]"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Array x -> Array", "arguments in parentheses"),
        ("(Array x) Array", "arguments in parentheses"),
        ("(Array) -> Array", "a name behind `Array`"),
        ("(Array x, Array x) -> Array", "a name of its own for each argument"),
        ("(Array[[] x) -> Array", "brackets that match"),
        ("(Matrix x) -> Array", "one of Array, int, .* in place of `Matrix`"),
        ("(int n=three) -> Array", "in place of `three`"),
        ("(Array x) -> (Array", "`\\)` at the end of the results"),
        ("test::f(Array x) -> Array", "must begin with the arguments, without a name"),
    ],
)
def test_other_texts_are_no_schemas(text, message):
    with pytest.raises(SchemaError, match=message) as caught:
        library.Schema.parse(text)
    assert text in str(caught.value)
    assert "(Array x, int n=3, *, float eps=1e-5) -> Array" in str(caught.value)


@pytest.mark.parametrize(
    "fun", [lambda y, n: y, lambda n, x: x, lambda x: x, lambda x, *, n: x, lambda x, n, m: x]
)
def test_a_signature_must_match_its_schema(fun):
    with pytest.raises(SchemaError, match=r"the signature must match the schema") as caught:
        custom_op("test::fun", schema="(Array x, int n) -> Array")(fun)
    assert "schema    (Array x, int n) -> Array" in str(caught.value)
    assert "signature (" in str(caught.value)


def test_a_declaration_with_a_schema_has_no_annotations_and_defaults():
    def annotated(x: Array, n): ...
    def defaulted(x, n=3): ...
    def several(*x): ...

    for fun, message in (
        (annotated, "must have no annotations; got some for x"),
        (defaulted, "must have no defaults; got some for n"),
        (several, "which is not supported"),
    ):
        with pytest.raises(ValueError, match=message):
            library.define(f"test::{fun.__name__}", "(Array x, int n) -> Array")(fun)


@pytest.mark.parametrize(
    ("schema", "functional"),
    [
        ("(Array x) -> Array", True),
        ("(Array(a) x) -> Array", True),
        ("(Array(a!) x) -> Array", False),
        ("(Array(a) x) -> Array(a)", False),
        ("(Array x) -> ()", False),
    ],
)
def test_only_functional_operators_can_be_declared(schema, functional):
    assert library.is_functional_schema(library.Schema.parse(schema)) is functional
    declare = library.define("test::f", schema)

    def f(x): ...

    if functional:
        declare(f)
    else:
        with pytest.raises(
            ValueError, match=r"only functional operators can be declared"
        ) as caught:
            declare(f)
        assert f"schema {schema}" in str(caught.value)


def test_no_argument_of_a_declaration_is_called_self():
    def f(self: Array) -> Array: ...

    with pytest.raises(ValueError, match=r"no argument must be called `self`") as caught:
        library.define("test::f")(f)
    assert "Rename it." in str(caught.value)


def test_keyword_only_arrays_are_refused():
    def f(x: Array, *, y: Array) -> Array: ...

    with pytest.raises(NotImplementedError, match=r"got the keyword-only array `y`") as caught:
        custom_op("test::f", f)
    assert isinstance(caught.value, KeywordOnlyArrayError)


def test_written_arguments_must_be_arrays_that_there_are():
    def f(x: Array, n: int) -> Array: ...

    for mutates_args, message in (
        (("y", "x"), "must name parameters; got 'y'"),
        (("n",), "only arrays can be written to; mutates_args has `int n`"),
        ("x", "must be an iterable of names, or \"unknown\"; got 'x'"),
    ):
        with pytest.raises(SchemaError, match=message):
            custom_op("test::f", mutates_args=mutates_args)(f)
    with pytest.raises(SchemaError, match=r"got x, and in the schema y"):
        custom_op("test::f", schema="(Array x, Array(a!) y) -> Array", mutates_args=("x",))(
            lambda x, y: x
        )


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "must be given `x`; got no value"),
        ((1.0, 2, 3), {}, "at most 2 positional arguments; got 3"),
        ((1.0,), {"m": 3}, "must be given arguments of its schema; got `m`"),
        ((1.0,), {"x": 3}, "must be given each argument once; got `x` twice"),
        (("one",), {}, "`x` must be an array; got str 'one'"),
        ((1.0, 2.5), {}, "`n` must be an int; got float '2.5'"),
        ((None,), {}, "`x` must be an array; got NoneType"),
    ],
)
def test_a_call_must_fit_the_schema(args, kwargs, message):
    @custom_op("test::f")
    def f(x: Array, n: int = 1) -> Array:
        return x * n

    with pytest.raises(ArgumentError, match=f"test::f: .*{message}") as caught:
        f(*args, **kwargs)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("float", [1, 2.5, numpy.float32(3)], ["1", None]),
        ("bool", [True, numpy.bool_(False)], [1]),
        ("str", ["a"], [b"a", 1]),
        ("Number", [1, 2.5, 3j], ["1"]),
        ("dtype", ["float32", numpy.int32], ["what", None]),
        ("device", [jax.devices()[0], "cpu"], [3]),
        ("int[]", [[1, 2], (3,)], [3, [1.5]]),
        ("Array[]", [[numpy.ones(1)], ()], [numpy.ones(1), [None]]),
        ("Array?[]", [[None, numpy.ones(1)]], [None]),
    ],
)
def test_parameters_are_of_their_types(kind, good, bad):
    op = custom_op("test::f", schema=f"(Array x, {kind} p) -> Array")(lambda x, p: x * 2)
    op.def_abstract(lambda x, p: x)
    for value in good:
        program = functx.make_ir(lambda x: op(x, value))(1.0)  # noqa: B023
        if kind != "device":
            assert functx.Program.parse(str(program)) == program
        assert op(1.0, value) == 2.0
    for value in bad:
        with pytest.raises(ArgumentError, match=r"test::f: `p` must be a"):
            op(1.0, value)


def test_a_traced_array_is_no_number():
    op = custom_op("test::f", schema="(Array x, int n) -> Array")(lambda x, n: x)
    op.def_abstract(lambda x, n: x)
    with pytest.raises(functx.errors.ConcretizationError):
        functx.jit(op)(1.0, 2)
    with pytest.raises(ArgumentError, match=r"static_argnums") as caught:
        jax.jit(op)(1.0, 2)
    assert "`n` must be an int" in str(caught.value)


def test_names_of_arguments_may_be_those_of_rules():
    op = custom_op("test::f", schema="(Array x, int batch, str name='a') -> Array")(
        lambda x, batch, name: x * batch
    )
    op.def_abstract(lambda x, batch, name: x)
    program = functx.make_ir(lambda x: op(x, 3, "b"))(1.0)
    assert "test::f[batch_=3, name_='b'] x" in str(program)
    assert functx.jit(lambda x: op(x, 3))(2.0) == 6.0

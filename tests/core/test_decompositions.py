"""The registry of decompositions: what is registered where, found, refused and undone."""

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import Primitive, decomp
from functx.core.caches import clear_on_rule_change, invalidate_caches, rule_version
from functx.core.decompositions import fallback_decomposition
from functx.core.errors import ArgumentError, MissingRuleError, RegistrationError
from functx.core.primitive import Primitive as Base
from functx.ops.activations import Gelu, Silu, Softplus
from functx.ops.families import Elementwise
from functx.ops.softmaxes import LogSoftmax, Softmax, SoftmaxLike
from functx.ops.transcendental import Sin

X = onp.array([0.5, -1.0, 2.0], "float32")


@pytest.fixture(autouse=True)
def undone():
    with decomp.scoped():
        yield


class Untold(Primitive):
    """An operation that says nothing but its types."""

    factor: float
    shift: float = 1.0

    def abstract_eval(self, x, y):
        return x


def untold(*args, factor=3.0):
    return Untold(factor)(*args)


# C1: tables and what is registered


def test_registering_gives_the_function_back():
    def plain(x):
        return x

    assert decomp.register("silu")(plain) is plain
    assert decomp.lookup("silu") is plain


@pytest.mark.parametrize("op", [Silu, "silu", functx.nn.silu], ids=["class", "name", "function"])
def test_an_operation_is_named_by_its_class_its_name_or_its_function(op):
    decomp.register(op)(lambda x: 3.0 * x)
    assert functx.nn.silu(X).tolist() == (3.0 * X).tolist()


@pytest.mark.parametrize(
    "ops",
    [[Silu, "softplus"], (Silu, Softplus), {"a": Silu, "b": [Softplus]}, {Silu, Softplus}],
    ids=["list", "tuple", "tree", "set"],
)
def test_one_function_serves_several_operations(ops):
    same = decomp.register(ops)(lambda x: x)
    assert decomp.get_decompositions([Silu, Softplus]) == {Silu: same, Softplus: same}


def test_a_family_stands_for_all_its_primitives():
    same = decomp.register(SoftmaxLike)(lambda x, axes: x)
    members = decomp.get_decompositions(SoftmaxLike)
    assert members[Softmax] is same and members[LogSoftmax] is same
    assert all(issubclass(cls, SoftmaxLike) for cls in members)
    decomp.remove(SoftmaxLike)
    assert decomp.lookup(Softmax) is not same


def test_each_table_has_its_own_entry():
    for table in ("general", "jvp", "vmap", "rng"):
        decomp.register("silu", table=table)(lambda x, table=table: x)
    assert len({decomp.lookup("silu", table) for table in ("general", "jvp", "vmap", "rng")}) == 4


def test_a_second_decomposition_in_one_table_is_refused_and_changes_nothing():
    first = decomp.register("silu")(lambda x: x)
    with pytest.raises(RegistrationError, match="one decomposition in the table 'general'; got"):
        decomp.register(["softplus", "silu"])(lambda x: -x)
    assert decomp.lookup("silu") is first
    assert decomp.lookup("softplus").__name__ == "decompose_softplus"
    with pytest.raises(RuntimeError, match=r"for silu(.|\n)*the first: test_decompositions.py:\d+"):
        decomp.register("silu")(lambda x: -x)


@pytest.mark.parametrize("use", [decomp.register, decomp.remove, decomp.lookup])
def test_an_unknown_table_is_refused(use):
    wanted = r"the table must be one of 'general', 'jvp', 'vmap', 'rng'; got 'backward'"
    with pytest.raises(RegistrationError, match=wanted):
        use("silu", table="backward")


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(RegistrationError, match=r"got 'softmaks'\n(.|\n)*There is 'softmax'"):
        decomp.register("softmaks")


@pytest.mark.parametrize("op", [np.sin, functx.nn.elu, 3, Softmax((0,)), float])
def test_what_is_no_operation_is_refused(op):
    with pytest.raises(ArgumentError, match="op must be a primitive's class or name"):
        decomp.register(op)


def test_a_decomposition_must_be_a_function():
    with pytest.raises(ArgumentError, match="a decomposition must be a function; got int"):
        decomp.register("silu")(3)


def test_the_decorator_without_its_call_is_refused():
    with pytest.raises(ArgumentError, match=r"written @functx.decomp.register\(\"softmax\"\)"):
        decomp.register(lambda x: x)


# C2: lookup for forward mode


def test_forward_mode_looks_into_its_own_table_then_into_the_general_one():
    assert decomp.get_jvp_decomposition("silu").__name__ == "decompose_silu"
    general = decomp.register("silu")(lambda x: x)
    assert decomp.get_jvp_decomposition("silu") is general
    own = decomp.register("silu", table="jvp")(lambda x: x)
    assert decomp.get_jvp_decomposition("silu") is own
    assert decomp.lookup("silu") is general


def test_a_missing_decomposition_names_the_operation_and_the_cure():
    wanted = r"sin must have a decomposition in the table 'jvp' or in 'general'; got none"
    with pytest.raises(MissingRuleError, match=wanted) as caught:
        decomp.get_jvp_decomposition(Sin)
    assert "functx.decomp.register('sin', table='jvp')" in str(caught.value)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, NotImplementedError)
    with pytest.raises(MissingRuleError, match=r"in the table 'general'; got none"):
        decomp.lookup("sin")
    with pytest.raises(RuntimeError, match=r"in the table 'vmap' or in 'general'; got none"):
        decomp.lookup("sin", table="vmap")


def test_a_lookup_is_of_one_operation():
    with pytest.raises(RegistrationError, match=r"got the family Elementwise of \d+ primitives"):
        decomp.lookup(Elementwise)


# C3: registering what may be there


def test_registering_where_one_exists_may_be_skipped():
    first = decomp.register("silu", exist_ok=True)(lambda x: x)
    second = decomp.register(["silu", "gelu"], exist_ok=True)(lambda x, approximate=True: -x)
    assert decomp.lookup("silu") is first
    assert decomp.lookup("gelu") is second


def test_what_functx_itself_has_is_no_registration():
    mine = decomp.register("silu", exist_ok=True)(lambda x: x)
    assert decomp.lookup("silu") is mine


# C5: signatures


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, factor, shift: x + y * factor * shift,
        lambda x, y, /, *, shift, factor: x + y * factor * shift,
        lambda x, factor, shift, y: x + y * factor * shift,
        lambda *xs, factor, shift: xs[0] + xs[1] * factor * shift,
        lambda x, y, **params: x + y * params["factor"] * params["shift"],
        lambda x, y, factor, shift, other=0.0: x + y * factor * shift + other,
    ],
    ids=["by position", "by keyword", "mixed", "operands", "params", "default"],
)
def test_operands_come_by_position_and_parameters_by_name(function):
    decomp.register(Untold)(function)
    assert untold(X, 2.0 * X).tolist() == (7.0 * X).tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, factor, shift, out=5.0: x + y * (0.0 if out is None else out),
        lambda x, y, out=5.0, *, factor, shift: x + y * (0.0 if out is None else out),
    ],
    ids=["by position", "in between"],
)
def test_a_decomposition_that_accepts_out_is_used_without_it(function):
    decomp.register(Untold)(function)
    assert untold(X, X).tolist() == (6.0 * X).tolist()


def test_an_out_that_has_no_default_is_given_none():
    @decomp.register(Untold)
    def with_out(x, y, *, factor, shift, out):
        assert out is None
        return x + y

    assert untold(X, X).tolist() == (2.0 * X).tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x,
        lambda x, y, factor: x,
        lambda x, y, factor, shift, *, other: x,
        lambda x, y, factor, shift, /: x,
    ],
    ids=["none", "one", "another", "by position"],
)
def test_a_function_without_the_parameters_is_refused_at_once(function):
    wanted = "the decomposition of untold must take the operands, then by name factor, shift; got"
    with pytest.raises(RegistrationError, match=wanted):
        decomp.register(Untold)(function)


def test_a_function_of_a_builtin_is_taken_as_it_is():
    decomp.register("silu")(abs)
    assert functx.nn.silu(X).tolist() == abs(X).tolist()


# C6: lookup and removal of several


def test_lookup_of_several_leaves_out_those_without():
    assert list(decomp.get_decompositions([Sin, Silu, "gelu"])) == [Silu, Gelu]
    assert decomp.get_decompositions([Silu], "jvp") == {}
    own = decomp.register("silu", table="jvp")(lambda x: x)
    assert decomp.get_decompositions([Silu, Gelu], "jvp") == {Silu: own}


def test_what_is_looked_up_is_called_with_operands_and_parameters():
    softmax = decomp.get_decompositions("softmax")[Softmax]
    assert onp.allclose(softmax(X, axes=(0,)), functx.nn.softmax(X))


def test_removal_from_a_dictionary_ignores_what_is_absent():
    held = decomp.get_decompositions(SoftmaxLike)
    decomp.remove_decompositions(held, ["softmax", "sin"])
    assert Softmax not in held and LogSoftmax in held


def test_removal_brings_back_what_was_there_and_ignores_what_is_absent():
    decomp.remove("silu", table="vmap")
    decomp.register("silu")(lambda x: 3.0 * x)
    assert functx.nn.silu(X).tolist() == (3.0 * X).tolist()
    decomp.remove(["silu", "sin"])
    assert onp.allclose(functx.nn.silu(X), X / (1 + onp.exp(-X)))


# What stands in for which rule


def test_the_lowering_opens_up_what_has_no_operation_of_its_own():
    table = decomp.lowering_decompositions()
    assert Softmax in table and Sin not in table
    assert all(cls.decompose is not None and not cls.has_rule("lower") for cls in table)
    mine = decomp.register("softmax")(lambda x, axes: x)
    assert decomp.lowering_decompositions()[Softmax] is mine


def test_a_decomposition_for_forward_mode_serves_reverse_mode_where_nothing_else_does():
    decomp.register(Untold, table="jvp")(lambda x, y, factor, shift: x)
    assert fallback_decomposition(Untold, ("jvp",)).table == "jvp"
    assert fallback_decomposition(Untold, ("vjp", "jvp", "transpose")).table == "jvp"
    decomp.register(Untold)(lambda x, y, factor, shift: x)
    assert fallback_decomposition(Untold, ("vjp", "jvp", "transpose")).table == "general"
    assert fallback_decomposition(Untold, ("jvp",)).table == "jvp"
    assert fallback_decomposition(Untold, ("batch",)).table == "general"


def test_random_numbers_are_made_by_their_own_table_before_the_general_one():
    decomp.register("random_normal")(
        lambda key, shape, dtype, partitionable: np.zeros(shape, dtype)
    )
    decomp.register("random_normal", table="rng")(
        lambda key, shape, dtype, partitionable: np.ones(shape, dtype)
    )
    key = functx.random.key(0)
    assert functx.random.normal(key, (2,)).tolist() == [1.0, 1.0]
    decomp.remove("random_normal", table="rng")
    assert functx.random.normal(key, (2,)).tolist() == [0.0, 0.0]


def test_the_table_of_random_numbers_replaces_rules_so_that_every_transform_draws_the_same():
    @decomp.register("random_bits", table="rng")
    def counted(key, shape, dtype, partitionable):
        words = key[..., 1].reshape((*key.shape[:-1], *[1] * len(shape)))
        return np.broadcast_to(words, (*key.shape[:-1], *shape)).astype(dtype)

    keys = functx.random.split(functx.random.key(7), 3)
    drawn = [functx.random.bits(key, (2,)).tolist() for key in keys]
    assert drawn == [[int(key[1])] * 2 for key in keys]
    mapped = functx.jit(functx.vmap(lambda key: functx.random.bits(key, (2,))))
    assert mapped(keys).tolist() == drawn


# Forgetting


def test_a_scope_undoes_registrations_and_removals():
    outer = decomp.register("silu")(lambda x: x)
    with decomp.scoped():
        decomp.remove("silu")
        inner = decomp.register("silu")(lambda x: 2.0 * x)
        decomp.register("gelu")(lambda x, approximate: x)
        assert decomp.lookup("silu") is inner
        assert functx.nn.silu(X).tolist() == (2.0 * X).tolist()
    assert decomp.lookup("silu") is outer
    assert decomp.lookup("gelu").__name__ == "decompose_gelu"
    assert functx.nn.silu(X).tolist() == X.tolist()


def test_a_scope_undoes_registrations_when_it_ends_by_an_error():
    with pytest.raises(ZeroDivisionError), decomp.scoped():
        decomp.register("silu")(lambda x: x)
        raise ZeroDivisionError
    assert decomp.lookup("silu").__name__ == "decompose_silu"


def test_a_scope_without_registrations_forgets_nothing():
    before = rule_version.count
    with decomp.scoped():
        pass
    assert rule_version.count == before


def test_nothing_is_forgotten_for_an_operation_that_never_occurred():
    class Fresh(Primitive):
        def abstract_eval(self, x):
            return x

    before = rule_version.count
    decomp.register(Fresh)(lambda x: x)
    assert rule_version.count == before
    assert Fresh()(X).tolist() == X.tolist()
    decomp.remove(Fresh)
    assert rule_version.count == before + 1
    with pytest.raises(MissingRuleError, match=r"functx.decomp.register\('fresh'\)"):
        Fresh()(X)


def test_every_cache_is_told_when_rules_change():
    told = []
    forget = clear_on_rule_change(lambda: told.append(rule_version.count))
    invalidate_caches()
    assert told == [rule_version.count]
    from functx.core import caches as module

    module._clear_functions.remove(forget)


def test_a_program_forgets_what_it_remembers_when_rules_change():
    program = functx.make_ir(lambda x: functx.nn.silu(x))(X)
    opened = functx.make_ir(functx.grad(lambda x: program(x)[0].sum()))
    before = str(opened(X))
    decomp.register("silu")(lambda x: 3.0 * x)
    assert "logistic" in before and "logistic" not in str(opened(X))


def test_the_registry_knows_what_is_a_family():
    assert Sin.name in Primitive.registry
    assert Elementwise.name not in Primitive.registry and Base.name not in Primitive.registry


def test_a_lookup_of_no_primitive_is_refused():
    for op in (None, [], ["silu", "softmax"]):
        with pytest.raises(ArgumentError, match="op must be one primitive"):
            decomp.lookup(op)

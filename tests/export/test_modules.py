"""Exported modules and flat joint functions: signatures, values, and what is refused."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import autograd, export, nn, random
from functx.autograd import Variable, no_grad
from functx.core.errors import ArgumentError, ExportError, ModuleTypeError

x = np.array([1.0, 2.0, 3.0], "float32")
table = np.arange(3, dtype="float32")


class Model(nn.Module):
    """A module whose forward is given."""

    def __init__(self, forward, tied=False):
        self.run = forward
        self.w = nn.Parameter(np.full(3, 2.0, "float32"))
        self.inner = nn.Sequential()
        self.inner.scale = nn.Parameter(np.float32(3.0))
        self.n = nn.Buffer(np.zeros(3, "float32"))
        self.k = nn.Buffer(np.float32(0.0))
        if tied:
            self.again = self.w

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def tracked(value=x):
    return Variable(value, requires_grad=True)


def exported(forward, args, joint=False, loss=None, tied=False, **kwargs):
    """The exported module after it was saved and loaded."""
    made = export.module(Model(forward, tied), args, joint, loss, kwargs=kwargs, platforms=())
    loaded = export.deserialize(made.serialize())
    assert loaded.signature == made.signature
    return loaded


def check(found, *expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_inputs_are_parameters_buffers_and_arguments_in_this_order():
    def forward(m, v, offset):
        return {"out": m.w * v["a"] * m.inner.scale + offset, "n": m.n}

    loaded = exported(forward, ({"a": x},), offset=1.0)
    assert loaded.signature == export.Signature(
        parameters=("w", "inner.scale"),
        buffers=("n", "k"),
        user_inputs=("args_0_a", "offset"),
        user_outputs=("output_0", "output_1"),
        inputs_to_parameters={"w": "w", "inner_scale": "inner.scale"},
        inputs_to_buffers={"n": "n", "k": "k"},
    )
    assert [*loaded.state_dict] == ["w", "inner.scale", "n", "k"]
    assert "inner_scale: f32[]" in str(loaded)
    check(loaded(*loaded.state_dict.values(), x, 1.0), np.zeros(3), 6 * x + 1)


def test_a_joint_program_returns_written_buffers_outputs_and_gradients():
    def forward(m, v):
        m.n += 1.0
        m.k = m.k + v.detach().sum()
        return (m.w * v).detach(), (m.w * v * m.inner.scale).sum()

    loaded = exported(forward, (tracked(),), joint=True, loss=1)
    signature, backward = loaded.signature, loaded.signature.backward_signature
    assert dict(signature.buffers_to_mutate) == {"output_0": "n", "output_1": "k"}
    assert signature.user_outputs == ("output_2", "output_3")
    # The written buffers come first, so the loss is not output number 1 of the program.
    assert backward.loss_output == "output_3"
    assert dict(backward.gradients_to_parameters) == {"output_4": "w", "output_5": "inner.scale"}
    assert dict(backward.gradients_to_user_inputs) == {"output_6": "args_0"}
    found = loaded(*loaded.state_dict.values(), x)
    check(found, np.ones(3), 6.0, 2 * x, 36.0, 3 * x, 12.0, np.full(3, 6.0))


def test_a_joint_program_gives_what_backward_gives():
    def forward(m, v, w):
        h = functx.checkpoint(xp.tanh)(m.w * v) + table
        with no_grad():
            m.n += 0.1 * h
        return ((h @ w) * m.inner.scale).sum()

    weights = np.linspace(-1, 1, 6, dtype="float32").reshape(3, 2)
    loaded = exported(forward, (tracked(), weights), joint=True, loss=0)
    assert loaded.signature.constants == ("c0",)
    model, v = Model(forward), tracked()
    loss = model(v, weights)
    loss.backward()
    gradients = [model.w.grad, model.inner.scale.grad, v.grad]
    check(loaded(*loaded.state_dict.values(), x, weights), model.n, loss.detach(), *gradients)


def test_gradients_of_complex_parameters_are_those_of_backward():
    class Complex(nn.Module):
        def __init__(self):
            self.w = nn.Parameter(np.array([1 + 2j, 3 - 1j], "complex64"))

        def forward(self, v):
            return xp.sum(xp.real(self.w * v) ** 2 + xp.imag(self.w * self.w * v))

    model, v = Complex(), np.array([1 + 1j, 2 - 1j], "complex64")
    made = export.module(model, (v,), True, 0)
    model(v).backward()
    check(made(*made.state_dict.values(), v)[1:], model.w.grad)


def test_a_gradient_is_zero_where_the_loss_does_not_depend():
    loaded = exported(lambda m, v: (m.w * v).sum(), (x,), joint=True, loss=0)
    check(loaded(*loaded.state_dict.values(), x), 12.0, x, 0.0)


def test_a_tied_parameter_is_one_input_with_the_whole_gradient():
    loaded = exported(lambda m, v: (m.w * m.again * v).sum(), (x,), True, 0, tied=True)
    assert loaded.signature.parameters == ("w", "inner.scale")
    check(loaded(*loaded.state_dict.values(), x), 24.0, 4 * x, 0.0)


def test_without_gradients_everything_may_be_written_to():
    def forward(m, v):
        with no_grad():
            m.w *= 2.0
            v *= 2.0
        m.n += m.w
        return (m.w * v).sum()

    loaded = exported(forward, (x.copy(),))
    assert dict(loaded.signature.parameters_to_mutate) == {"output_0": "w"}
    assert dict(loaded.signature.buffers_to_mutate) == {"output_1": "n"}
    assert dict(loaded.signature.user_inputs_to_mutate) == {"output_2": "args_0"}
    given = x.copy()
    found = loaded(*loaded.state_dict.values(), given)
    check(found, np.full(3, 4.0), np.full(3, 4.0), 2 * x, 48.0)
    assert given.tolist() == x.tolist()


def test_the_module_and_its_values_stay_as_they_are():
    def forward(m, v):
        m.n += v
        return m.w * v

    model = Model(forward)
    made = export.module(model, (x,))
    with no_grad():
        model.w[...] = 7.0
    check([made.state_dict["w"], model.n], np.full(3, 2.0), np.zeros(3))


def test_typed_keys_numbers_and_static_arguments_are_arguments():
    def forward(m, key, number, word):
        return random.normal(key, (2,)) * number if word == "draw" else m.w

    key = jax.random.key(3)
    loaded = exported(forward, (key, 2, "draw"))
    assert loaded.signature.user_inputs == ("args_0", "args_1")
    expected = 2 * random.normal(key, (2,))
    check(loaded(*loaded.state_dict.values(), key, 2), expected)
    with pytest.raises(ArgumentError, match=r"takes 6 of them by position; got 1\n.*w, inner"):
        loaded(x)


def test_symbolic_sizes_are_refused():
    v = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), "float32")
    for call in (
        lambda: export.export(xp.sin)({"v": v}),
        lambda: export.module(Model(lambda m, v: v), (v,)),
        lambda: export.joint_simple(lambda v: (v,), (v,)),
    ):
        with pytest.raises(ExportError, match=r"must be ints; got the shape \(n,\)"):
            call()


def test_export_of_a_module_as_a_function_names_the_form_for_modules():
    model = Model(lambda m, v: m.w * v)
    for fun in (model, model.forward):
        with pytest.raises(ExportError, match=r"Write functx\.export\.module\(m, args\)"):
            export.export(fun)(x)


def test_the_text_of_a_signature_shows_the_attributes_of_the_backward_part_below_it():
    made = export.module(Model(lambda m, v: (m.w * v).sum()), (x,), True, 0)
    text = str(made.signature)
    rows = text.split("backward_signature\n")[1].splitlines()
    assert [row.split()[0] for row in rows] == ["gradients_to_parameters", "loss_output"]
    assert all(row.startswith("  ") for row in rows)


def test_modules_of_other_libraries_are_exported():
    class Foreign:
        def __init__(self, w):
            self.w = w

        def __functx_state__(self):
            return {"w": self.w}, lambda state: Foreign(**state)

        def __call__(self, v):
            return (self.w * v).sum()

    made = export.module(Foreign(2 * x), (x,), trace_joint=True, output_loss_index=0)
    assert made.signature.parameters == ("w",)
    check(made(2 * x, x), 28.0, x)
    with pytest.raises(ModuleTypeError):
        export.module(3, (x,), trace_joint=False)


def in_place(m, v):
    v *= 2.0
    return (m.w * v).sum()


def history(m, v):
    m.n += m.w * v
    return (m.w * v).sum()


def other_shape(m, v):
    m.n = xp.ones(4)
    return (m.w * v).sum()


def written_parameter(m, v):
    with no_grad():
        m.w *= 2.0
    return (m.w * v).sum()


def written_pair(m, v, other):
    v *= 2.0
    return (m.w * v).sum() + other.sum() * 0.0


REFUSED = {
    "a write to an input that needs a gradient": (
        (in_place, (tracked,), True, 0),
        "nothing that requires a gradient may be written to; got a write to `args[0]`",
    ),
    "a write to a parameter": (
        (written_parameter, (lambda: x,), True, 0),
        "nothing that requires a gradient may be written to; got a write to `w`",
    ),
    "a buffer with a history": (
        (history, (lambda: x,), True, 0),
        "must not depend on what requires a gradient; got such a value for `n`",
    ),
    "another shape": (
        (other_shape, (lambda: x,), False, None),
        "must keep their shapes and dtypes; got f32[4] in place of f32[3] for `n`",
    ),
    "one array twice": (
        (written_pair, (lambda: table, lambda: table), False, None),
        "got `args[0]`, which is the same array as `args[1]`",
    ),
    "overlapping arrays": (
        (written_pair, (lambda: table, lambda: table[1:]), False, None),
        "got `args[0]`, which shares memory with `args[1]`",
    ),
    "a second output that needs a gradient": (
        (lambda m, v: ((m.w * v).sum(), m.w * v), (lambda: x,), True, 0),
        "no output but the loss, number 0, may require a gradient; got output 1, f32[3]",
    ),
    "a random draw": (
        (lambda m, v: (m.w * random.rand(3)).sum(), (lambda: x,), True, 0),
        "must not draw random numbers from a generator",
    ),
    "no loss index": (
        (lambda m, v: (m.w * v).sum(), (lambda: x,), True, None),
        "one output must be the loss; got output_loss_index=None",
    ),
    "an index of no output": (
        (lambda m, v: (m.w * v).sum(), (lambda: x,), True, 1),
        "the number of an output, of 1; got 1",
    ),
    "a loss of three numbers": (
        (lambda m, v: m.w * v, (lambda: x,), True, 0),
        "an array of shape (), one number; got shape (3,) at output 0",
    ),
    "a loss without a gradient": (
        (lambda m, v: v.sum(), (lambda: x,), True, 0),
        "a real number that requires a gradient; got one that does not at output 0",
    ),
    "a complex loss": (
        (lambda m, v: (m.w * v).sum() * 1j, (lambda: x,), True, 0),
        "a real number that requires a gradient; got c64[] at output 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_is_refused_with_the_reason(name):
    (forward, args, joint, loss), reason = REFUSED[name]
    with pytest.raises(ExportError) as caught:
        exported(forward, tuple(make() for make in args), joint, loss)
    assert reason in str(caught.value)


def test_arguments_of_other_types_are_named():
    with pytest.raises(ArgumentError, match="must be an int; got str"):
        exported(lambda m, v: (m.w * v).sum(), (x,), True, "a")
    with pytest.raises(ArgumentError, match="args must be a tuple of arguments; got ndarray"):
        exported(lambda m, v: m.w, x)


def flat(fun, *args, joint=True, **kwargs):
    made = export.joint_simple(fun, args, trace_joint=joint, platforms=(), **kwargs)
    loaded = export.deserialize(made.serialize())
    assert loaded.signature == made.signature
    return loaded


def test_a_simple_joint_function_keeps_the_convention_of_its_calls():
    def f(v, w):
        return [v * 2.0, w * v + table, v > 0.0]

    plain = flat(f, tracked(), x, joint=False)
    check(plain(x, x), *f(x, x))
    joint = flat(f, tracked(), x)
    outs, grads = joint((x, x), (x, np.ones(3, "float32")))
    assert type(outs) is list and type(grads) is tuple and grads[1] is None
    check(outs, *f(x, x))
    check(grads[:1], 3 * x)
    assert joint.signature.user_inputs == ("v", "w", "ct_0", "ct_1")
    assert joint.signature.constants == ("c0",)
    backward = joint.signature.backward_signature
    assert dict(backward.gradients_to_user_inputs) == {"output_3": "v"}


def test_plain_arrays_require_gradients_unless_told_otherwise():
    def f(v, w):
        return (v * w,)

    both, one = flat(f, x, x), flat(f, x, x, requires_grad=(False, True))
    check(both((x, 2 * x), (x,))[1], 2 * x * x, x * x)
    assert one((x, 2 * x), (x,))[1][0] is None
    none = flat(f, Variable(x), Variable(x))
    check(none(x, x), x * x)


def test_second_derivatives_go_through_a_loaded_joint_function():
    joint = flat(lambda v: (xp.sin(v),), x)
    slope = functx.grad(lambda v: joint((v,), (xp.ones(3),))[1][0].sum())(x)
    np.testing.assert_allclose(slope, -np.sin(x), rtol=1e-6)


def overwrite(v):
    v *= 2.0
    return (v,)


def two_views(v):
    base = v * 2.0
    return base[:2], base[1:]


@pytest.mark.parametrize(
    ("fun", "args", "reason"),
    [
        (lambda d: (d["a"],), ({"a": x},), "each argument must be an array; got dict for number 0"),
        (lambda v, w: (v,), (x, "a"), "got str for number 1"),
        (lambda v: v * 2.0, (x,), "a tuple or a list of arrays; got PyTreeDef(*)"),
        (lambda v: (v * 2.0, {"a": v + 1.0}), (x,), "a tuple or a list of arrays"),
        (overwrite, (x.copy(),), "a write to `v`"),
        (lambda v: (v,), (x,), "result 0, which shares that of `v`"),
        (lambda v: (v * 2.0, v[:2]), (x,), "result 1, which shares that of `v`"),
        (two_views, (x,), "result 0, which shares that of another result"),
        (lambda v: (v * random.rand(3),), (x,), "must not draw random numbers"),
    ],
)
def test_a_simple_function_is_refused_with_the_reason(fun, args, reason):
    with pytest.raises(ExportError) as caught:
        export.joint_simple(fun, args)
    assert reason in str(caught.value)


def test_a_joint_program_can_be_partitioned():
    joint = export.joint_simple(lambda v, w: (xp.sin(v) * w,), (x, x))
    whole = functx.aot.JointProgram(joint.program, 2, 1)
    forward, backward = functx.aot.default_partition(whole)
    out, *kept = forward(x, 2 * x)
    np.testing.assert_allclose(out, np.sin(x) * 2 * x, rtol=1e-6)
    assert len(backward.inputs) == len(kept) + 1


def test_exported_functions_of_variables_are_differentiated_by_backward():
    made = export.module(Model(lambda m, v: (m.w * v).sum()), (x,), trace_joint=False)
    w = autograd.Variable(2 * x, requires_grad=True)
    out = made(w, *[*made.state_dict.values()][1:], x)[0]
    out.backward()
    np.testing.assert_allclose(w.grad, x)

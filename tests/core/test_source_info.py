import functools
import linecache
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import functx
from functx.core.errors import ShapeError
from functx.core.samples import f32
from functx.core.source_info import (
    FUNCTX_OR_JAX,
    INSTALLED_PACKAGE,
    USER_CODE,
    DerivedSource,
    assigned_names,
    backward_source,
    derived_source,
    describe_source,
    file_owner,
    line_number,
    source_line,
    user_source,
)
from functx.core.tracing import trace
from functx.ops.arithmetic import add, mul
from functx.ops.transcendental import cos, sin
from functx.transforms.call_primitive import Call

from .programs import Halves


def cell_file(process):
    """The file that IPython names for a cell of a notebook."""
    return os.path.join(tempfile.gettempdir(), f"ipykernel_{process}", "1.py")


def sources(fun, count=1):
    """Where the equations of `fun` come from."""
    program, _ = trace(fun, [f32[3]] * count)
    return [eqn.source for eqn in program]


def given_names(fun, count=1):
    return [assigned_names(source) for source in sources(fun, count)]


def lines(fun, count=1):
    """The lines of the equations of `fun`, counted from its `def`."""
    return [line_number(s) - fun.__code__.co_firstlineno for s in sources(fun, count)]


class TestNames:
    def test_a_plain_assignment(self):
        def f(x):
            y = sin(x)
            return [y]

        assert given_names(f) == [("y",)]

    def test_a_name_that_is_used_at_once(self):
        def f(x):
            y = sin(x)
            z = add(y, y)
            return [z]

        assert given_names(f) == [("y",), ("z",)]

    def test_the_outer_of_nested_calls(self):
        def f(x):
            y = sin(cos(x))
            return [y]

        assert given_names(f) == [(), ("y",)]

    def test_calls_with_keywords_and_stars(self):
        def f(x):
            y = add(x=x, y=x)
            z = add(*(y, x))
            w = functools.partial(add, z)(x)
            return [w]

        assert given_names(f) == [("y",), ("z",), ("w",)]

    def test_several_targets_and_annotations(self):
        def f(x):
            y = z = sin(x)
            w: object = cos(z)
            return [add(y, v := sin(w)), v]

        assert given_names(f) == [("y",), ("w",), ("v",), ()]

    def test_variables_of_an_enclosing_function(self):
        def f(x):
            outer = None

            def inner():
                nonlocal outer
                outer = sin(x)

            inner()
            return [outer]

        assert given_names(f) == [("outer",)]

    def test_global_variables(self):
        def f(x):
            global _saved
            _saved = sin(x)
            return [_saved]

        assert given_names(f) == [("_saved",)]

    def test_unpacking(self):
        def f(x):
            left, right = Halves()(x)
            first, *rest = Halves()(left)
            return [left, right, first, *rest]

        assert given_names(f) == [("left", "right"), ()]

    def test_what_is_stored_elsewhere_has_no_name(self):
        def f(x):
            box = {}
            box["y"] = sin(x)
            f.y = cos(x)
            return [box["y"], f.y, *[sin(x) for _ in range(1)]]

        assert given_names(f) == [(), (), ()]

    def test_a_returned_value_has_no_name(self):
        assert given_names(lambda x: [sin(x)]) == [()]

    def test_a_function_with_many_variables(self):
        body = "\n".join(f"    v{i} = sin(x)" for i in range(600))
        scope = {"sin": sin}
        exec(f"def f(x):\n{body}\n    return [{', '.join(f'v{i}' for i in range(600))}]", scope)
        assert given_names(scope["f"]) == [(f"v{i}",) for i in range(600)]


class TestLines:
    def test_each_equation_has_the_line_that_asked_for_it(self):
        def f(x):
            y = sin(x)

            z = mul(y, cos(y))
            return [add(z, y)]

        assert lines(f) == [1, 3, 3, 4]

    def test_a_call_over_several_lines_has_its_first(self):
        def f(x):
            y = add(
                sin(x),
                cos(
                    x,
                ),
            )
            return [y]

        assert lines(f) == [2, 3, 1]

    def test_loops_repeat_their_lines(self):
        def f(x):
            for _ in range(2):
                x = sin(x)
                x = cos(x)
            return [x]

        assert lines(f) == [2, 3, 2, 3]

    def test_comprehensions_generators_and_lambdas(self):
        def f(x):
            a = [sin(x) for _ in range(1)]
            b = list(cos(x) for _ in range(1))  # noqa: C400
            g = lambda y: sin(y)  # noqa: E731
            c = list(map(g, b))
            return [*a, *b, *c]

        assert lines(f) == [1, 2, 3]

    def test_code_made_from_a_string(self):
        scope = {"sin": sin}
        exec(compile("def f(x):\n    return [sin(x)]", "<made>", "exec"), scope)
        (source,) = sources(scope["f"])
        assert describe_source(source) == "<made>:2 in f"
        assert source_line(source) == "<made>:2 in f"

    def test_the_innermost_function_of_the_user_counts(self):
        def helper(x):
            return sin(x)

        def f(x):
            return [helper(x)]

        (source,) = sources(f)
        assert source[0] is helper.__code__

    def test_a_function_that_a_library_calls(self):
        def f(x):
            return [functools.reduce(add, [x, x, x])]

        assert lines(f) == [1, 1]


class TestDescriptions:
    def test_a_source_is_told_by_file_line_and_function(self):
        def f(x):
            y = sin(x)  # the line
            return [y]

        (source,) = sources(f)
        line = f.__code__.co_firstlineno + 1
        where = f"test_source_info.py:{line} in {f.__qualname__.replace('.<locals>', '')}"
        assert describe_source(source) == where
        assert source_line(source) == f"{where}: y = sin(x)  # the line"

    def test_no_source_is_an_unknown_line(self):
        assert describe_source(None) == source_line(None) == "unknown line"

    def test_the_caller_is_found(self):
        code, _ = user_source(1)
        assert code.co_name == "test_the_caller_is_found"

    def test_who_makes_a_dataclass_is_the_caller(self):
        @dataclass
        class Made:
            found: object = None

            def __post_init__(self):
                self.found = user_source(2)

        assert Made().found[0].co_name == "test_who_makes_a_dataclass_is_the_caller"

    def test_the_caller_is_found_in_a_thread(self):
        found = []

        def work():
            found.append(user_source(1))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found[0][0] is work.__code__


def installed(tmp_path, text):
    """The scope of the module `text` of the installed package `solvers`."""
    path = tmp_path / "site-packages" / "solvers" / "steps.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    scope = {"sin": sin, "functx": functx}
    exec(compile(text, str(path), "exec"), scope)
    return scope


class TestInstalledPackages:
    def test_the_users_line_comes_first_and_then_that_of_the_package(self, tmp_path):
        step = installed(tmp_path, "def step(x):\n    y = sin(x)\n    return y")["step"]

        def f(x):
            z = functools.partial(step, x)()
            return [z]

        (source,) = sources(f)
        name = f.__qualname__.replace(".<locals>", "")
        line = f.__code__.co_firstlineno + 1
        through = "through solvers/steps.py:2 in step"
        for each in (source, derived_source(source), backward_source(derived_source(source))):
            assert describe_source(each) == f"test_source_info.py:{line} in {name}, {through}"
            assert source_line(each) == (
                f"test_source_info.py:{line} in {name}: z = functools.partial(step, x)()\n"
                f"    {through}: y = sin(x)"
            )
        assert source[0] is step.__code__ and assigned_names(source) == ("y",)

    def test_errors_name_both(self, tmp_path):
        step = installed(tmp_path, "def step(x):\n    return functx.numpy.reshape(x, 5)")["step"]
        with pytest.raises(ShapeError) as caught:
            functx.grad(lambda x: step(x).sum())(np.ones(3))
        text = str(caught.value)
        assert "at test_source_info.py" in text and "step(x).sum()" in text
        assert "\n    through solvers/steps.py:2 in step: return functx" in text

    def test_a_program_that_is_installed_itself_is_named_by_its_innermost_line(self, tmp_path):
        text = "def main():\n    global found\n    found = user_source(1)"
        scope = installed(tmp_path, text)
        scope["user_source"] = user_source
        thread = threading.Thread(target=scope["main"])
        thread.start()
        thread.join()
        assert describe_source(scope["found"]) == "solvers/steps.py:3 in main"

    def test_whose_a_file_is(self):
        theirs = [functools.__file__, np.__file__, "<frozen runpy>", "/a/dist-packages/b.py"]
        assert {file_owner[name] for name in theirs} == {INSTALLED_PACKAGE}
        users_own = [__file__, "<string>", "<stdin>", cell_file(7), "/a/packages/b.py"]
        assert {file_owner[name] for name in users_own} == {USER_CODE}
        assert {file_owner[name] for name in (functx.__file__, functx.tree.__file__)} == {
            FUNCTX_OR_JAX
        }


def test_a_cell_of_a_notebook_is_called_by_its_number(monkeypatch):
    filename = cell_file(123)
    scope = {"sin": sin}
    text = "def f(x):\n    y = sin(x)\n    return [y]\n"
    exec(compile(text, filename, "exec"), scope)
    monkeypatch.setitem(
        linecache.cache, filename, (len(text), None, text.splitlines(True), filename)
    )
    names = {filename: ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    (source,) = sources(scope["f"])
    assert source_line(source) == "cell In[3], line 2 in f: y = sin(x)"
    (source,) = sources(lambda x: [sin(x)])
    assert describe_source(source).startswith("test_source_info.py:")


class TestDerived:
    def test_a_derived_source_equals_the_plain_one(self):
        (source,) = sources(lambda x: [sin(x)])
        mark = derived_source(source)
        assert type(mark) is DerivedSource
        assert mark == source
        assert describe_source(mark) == describe_source(source)
        assert derived_source(mark) is mark
        assert derived_source(None) is None

    def test_equations_of_a_program_in_an_equation_have_their_own_lines(self):
        def inner(x):
            return [sin(x)]

        program, _ = trace(inner, [f32[3]])

        def f(x):
            return Call(program)(x)

        (source,) = sources(f)
        assert source[0] is f.__code__
        assert program.equations[0].source[0] is inner.__code__


def test_names_and_lines_of_long_functions_are_found_in_time_in_proportion():
    count = 4000
    body = "\n".join("    x = sin(x)" for _ in range(count))
    scope = {"sin": sin}
    exec(f"def f(x):\n{body}\n    return [x]", scope)
    found = sources(scope["f"])
    assert [line_number(s) for s in found] == list(range(2, count + 2))
    assert all(assigned_names(s) == ("x",) for s in found)


@pytest.mark.parametrize("offset", [0, 10**6])
def test_an_offset_outside_the_code_is_no_error(offset):
    code = test_an_offset_outside_the_code_is_no_error.__code__
    assert line_number((code, offset)) >= code.co_firstlineno
    assert assigned_names((code, offset)) in ((), ("code",))

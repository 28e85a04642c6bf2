"""Garbage collection is rarer while functx works, and afterwards as the process had it."""

import gc
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

import functx
from functx.core.caches import garbage_collection
from functx.core.errors import ValueRangeError


@pytest.fixture(autouse=True)
def process_settings():
    before = gc.get_threshold()
    gc.set_threshold(600, 5, 5)
    yield
    gc.enable()
    gc.set_threshold(*before)


@contextmanager
def all_scopes():
    garbage_collection.begin_trace()
    try:
        with garbage_collection.paused():
            yield
    finally:
        garbage_collection.end_trace()


def settings():
    return gc.isenabled(), gc.get_threshold()


def test_thresholds_are_raised_in_a_trace_and_in_those_inside_it():
    def loss(x):
        seen.append(gc.get_threshold())
        return x * x

    seen = []
    functx.make_ir(functx.grad(lambda x: functx.jit(loss)(x)))(2.0)
    assert seen == [(100_000, 5, 5)]
    assert gc.get_threshold() == (600, 5, 5)


def test_settings_are_restored_after_an_error():
    with pytest.raises(ZeroDivisionError):
        functx.make_ir(lambda x: 1 // 0)(2.0)
    with pytest.raises(ZeroDivisionError), garbage_collection.paused():
        assert settings() == (False, (600, 5, 5))
        1 // 0  # noqa: B018
    assert settings() == (True, (600, 5, 5))


def test_a_collector_that_is_off_stays_off():
    gc.set_threshold(0, 5, 5)
    gc.disable()
    seen = []
    functx.make_ir(lambda x: seen.append(settings()))(2.0)
    with garbage_collection.paused():
        pass
    assert [*seen, settings()] == [(False, (0, 5, 5))] * 2


def test_thresholds_that_are_set_during_a_trace_stay():
    functx.make_ir(lambda x: gc.set_threshold(700, 6, 6))(2.0)
    assert gc.get_threshold() == (700, 6, 6)


def test_the_last_of_several_threads_restores_the_settings():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        with all_scopes():
            begun.set()
            go_on.wait(10)

    other = threading.Thread(target=work)
    with all_scopes():
        other.start()
        assert begun.wait(10)
    assert settings() == (False, (100_000, 5, 5))
    go_on.set()
    other.join()
    assert settings() == (True, (600, 5, 5))


def test_the_collector_is_left_alone_when_the_user_says_so():
    seen = []
    with functx.config.set(garbage_collection="leave"):
        functx.make_ir(lambda x: seen.append(settings()))(2.0)
        with garbage_collection.paused():
            seen.append(settings())
    assert seen == [(True, (600, 5, 5))] * 2
    with pytest.raises(ValueRangeError, match=r"must be one of \('tune', 'leave'\); got 'off'"):
        functx.config.garbage_collection = "off"


def test_a_switch_changed_within_a_scope_restores_the_settings():
    with all_scopes():
        functx.config.garbage_collection = "leave"
    assert settings() == (True, (600, 5, 5))
    with all_scopes():
        functx.config.garbage_collection = "tune"
    assert settings() == (True, (600, 5, 5))


def run_python(code, **environment):
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return out.stdout.strip()


def test_an_import_restores_the_settings_also_when_it_fails():
    code = (
        "import gc, sys\n"
        "import jax\n"
        "gc.set_threshold(600, 5, 5)\n"
        "frozen = []\n"
        "gc.freeze = lambda: frozen.append(gc.isenabled())\n"
        "sys.modules['functx.core.config'] = None\n"
        "try:\n"
        "    import functx\n"
        "except ImportError:\n"
        "    print(gc.isenabled(), gc.get_threshold(), frozen)\n"
    )
    assert run_python(code) == "True (600, 5, 5) []"


@pytest.mark.parametrize(("mode", "frozen"), [("tune", "[False]"), ("leave", "[]")])
def test_an_import_tunes_the_collector_unless_the_environment_says_so(mode, frozen):
    code = (
        "import gc, jax\n"
        "frozen = []\n"
        "gc.freeze = lambda: frozen.append(gc.isenabled())\n"
        "import functx\n"
        "print(gc.isenabled(), frozen, functx.config.garbage_collection)\n"
    )
    out = run_python(code, FUNCTX_GARBAGE_COLLECTION=mode)
    assert out == f"True {frozen} {mode}"

"""The suite runs on the CPU, in JAX's default 32-bit mode, with every program checked."""

import ctypes
import gc
import os
from inspect import unwrap
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The suite compiles thousands of small programs and runs each once: XLA does no more than it must,
# in one thread, with the older of its two code generators, which is twice as fast. Given flags win.
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Threads of BLAS that wait for small matrices take processors from the tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir

import functx
from functx.core.config import program_checks
from functx.passes.reassociation import REASSOCIATION_THRESHOLDS, ReassociationThresholds

# The filters of warnings in pyproject.toml import JAX before this file sets variables of the environment.
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
jax.config.update("jax_disable_most_optimizations", True)
# Without a directory for compiled programs the cache finds none, but takes a hash of each.
jax.config.update("jax_enable_compilation_cache", False)


# JAX makes a context for each program and loads all dialects of MLIR into it, which takes longer than
# most lowerings of the suite. Others than func are loaded where they are registered or parsed.
ir.Context.load_all_available_dialects = lambda context: context.d["func"]
# In contexts that take several threads, MLIR looks through those of the whole process for each new type.
ir.Context.set_thread_pool = lambda context, pool: context.enable_multithreading(False)

program_checks.enabled = True
# Where a test fails, functx's own frames are what is to be seen.
functx.config.traceback_filtering = "off"

# Tests make programs by the thousand and few cycles: looking for those was a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 20, 20)

# JAX keeps the context of each program that it compiled; the more there are, the longer a new one takes.
MAX_CONTEXTS = 500


def pytest_collection_modifyitems(config, items):
    """Leave out examples of JAX's functions, and those that a package gives again with errors explained."""
    seen, left_out = set(), set()
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.dtest.docstring is not None:
            name = item.dtest.name.rpartition(".")[2]
            owner = getattr(unwrap(item.dtest.globs.get(name)), "__module__", None) or ""
            if owner.startswith("jax") or (name, item.dtest.docstring) in seen:
                left_out.add(item)
            seen.add((name, item.dtest.docstring))
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def seeded_draws():
    """The same draws from NumPy's global generator in each run, so that a test fails always or never."""
    np.random.seed(0)


@pytest.fixture(autouse=True)
def collections_of_new_objects(request):
    """In files that import `gc`, collections look at the objects of the test alone.

    A collection of all that was imported and compiled takes about a second.
    """
    if hasattr(getattr(request.node, "module", None), "gc"):
        gc.freeze()


def pytest_runtest_teardown():
    """Forget what earlier tests compiled when it has piled up."""
    if ir.Context._get_live_count() > MAX_CONTEXTS:
        functx.clear_caches()
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Freed memory stays with the process until it is asked for.
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


@pytest.fixture
def optimised():
    """XLA with all of its passes, for one test."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """64-bit types on, for one test."""
    with jax.enable_x64():
        yield


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")
    parser.addoption(
        "--in-place-programs",
        type=int,
        default=0,
        help="so many more random programs in each test of tests/mutation/test_random_programs.py",
    )
    parser.addoption(
        "--switch",
        action="append",
        default=[],
        metavar="NAME=WORD",
        help="a switch of functx.config for the whole run, such as outline=always",
    )
    parser.addoption(
        "--compiled-walks",
        action="store_true",
        help="run each test under functx.compiled_autograd.enable(), with the program of each walk",
    )


class CompiledWalks:
    """Runs tests with walks as captured programs, also the first walk of a structure."""

    @pytest.fixture(autouse=True)
    def compiled_walks(self, monkeypatch):
        from functx.autograd.compiled.compilers import WalkCompiler

        monkeypatch.setattr(WalkCompiler, "runs_first_walk", True)
        with functx.compiled_autograd.enable():
            yield


def pytest_configure(config):
    if config.getoption("--compiled-walks"):
        config.pluginmanager.register(CompiledWalks())
    for switch in config.getoption("--switch"):
        functx.config.update(*switch.split("=", 1))


@pytest.fixture
def all_kept():
    """All is kept that derivatives need, for a test that looks at it, whatever the switches."""
    with functx.config.set(memory="off"):
        yield


@pytest.fixture
def scaling_is_free(monkeypatch):
    """Small sums of squares are computed from factors too, though scaling these costs more."""
    auto = REASSOCIATION_THRESHOLDS["auto"]
    cheap = ReassociationThresholds(auto.min_elements, auto.min_speedup)
    monkeypatch.setitem(REASSOCIATION_THRESHOLDS, "auto", cheap)


@pytest.fixture
def golden(request):
    """Compare a text with the golden file of a name, or rewrite that with --update-golden."""

    def compare(name, text):
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
        assert path.read_text() == f"{text}\n"

    return compare

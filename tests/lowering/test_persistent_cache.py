"""Compiled programs on disk: another process, elsewhere, with other lines, compiles nothing."""

import os
import subprocess
import sys

import jax
import pytest

import functx
from functx.core.errors import ValueRangeError

PROGRAM = """
import sys
import jax, numpy as np
import functx, functx.numpy as fnp
from functx import grad, jit, vmap

counts = {"hits": 0, "misses": 0}

def listen(event, **_):
    for name in counts:
        counts[name] += event == "/jax/compilation_cache/cache_" + name

jax.monitoring.register_event_listener(listen)
jax.numpy.ones(2) + 1
functx.config.compilation_cache = sys.argv[1]
x = np.ones((3, 3), "float32")

def loss(w):
    return (fnp.tanh(x @ w) ** 2).sum()

def deep(w):
    h = w
    for _ in range(12):
        h = fnp.tanh(h @ w) + h * 0.5
        h = h / (1.0 + fnp.abs(h))
    return h.sum()

@functx.custom_vjp
def doubled(x):
    return fnp.sin(x)

doubled.defvjp(lambda x: (doubled(x), x), lambda x, ct: (2.0 * ct,))

@functx.custom_op("test::scale", mutates_args=())
def scale(x: jax.Array) -> jax.Array:
    return x * 2.0

scale.def_abstract(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))

jit(loss)(x)
grad(loss)(x)
jit(vmap(grad(lambda v: fnp.sin(v).sum())))(x)
grad(lambda w: functx.lax.scan(lambda c, _: (fnp.sin(c @ w), None), x, None, length=3)[0].sum())(x)
with functx.config.set(outline="always"):
    jit(grad(deep))(x)
jit(lambda w: (fnp.linalg.svd(w)[1], fnp.sort(w), fnp.fft.fft(w)))(x)
grad(lambda w: functx.nn.log_softmax(w)[0, 0])(x)
jit(lambda key: functx.random.normal(key, (3,)))(functx.random.key(0))
jit(grad(lambda w: doubled(w).sum()))(x)
jit(scale)(x)
jit(functx.from_jax(lambda w: jax.numpy.tanh(w) * 2.0))(x)
for factor in (1.5, 2.5, 3.5):
    grad(lambda w: (w * factor).sum() * factor)(x)
print(counts["hits"], counts["misses"])
"""


def run(directory, name, text, cache, seed):
    path = directory / name
    path.parent.mkdir()
    path.write_text(text)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), str(cache)],
        capture_output=True,
        text=True,
        env=env,
        cwd=path.parent,
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


def test_another_process_compiles_nothing(tmp_path):
    cache = tmp_path / "cache"
    hits, misses = run(tmp_path, "here/first.py", PROGRAM, cache, "1")
    assert hits == 0
    assert misses > 12
    kept = sorted(os.listdir(cache))
    moved = "# A line more\n\n" + PROGRAM.replace("def loss", "\n\ndef loss")
    assert run(tmp_path, "there/second.py", moved, cache, "2") == (misses, 0)
    assert {n for n in os.listdir(cache) if n.endswith("-cache")} == {
        n for n in kept if n.endswith("-cache")
    }


def test_a_file_is_no_directory():
    with pytest.raises(ValueRangeError, match="must be the path of a directory, or None; got the"):
        functx.config.compilation_cache = __file__


def test_the_switch_is_jax_s_own():
    config = functx.config
    assert config.compilation_cache is None
    seconds = config.compilation_cache_min_seconds
    try:
        with config.set(compilation_cache="some/directory", compilation_cache_min_bytes=100):
            assert jax.config.jax_compilation_cache_dir == "some/directory"
            assert config.compilation_cache_min_seconds == 0.0
            assert jax.config.jax_persistent_cache_min_entry_size_bytes == 100
            config.compilation_cache_min_seconds = 2.5
            assert jax.config.jax_persistent_cache_min_compile_time_secs == 2.5
    finally:
        config.compilation_cache_min_seconds = seconds
    assert config.compilation_cache is jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        (
            "compilation_cache",
            3,
            functx.errors.ArgumentError,
            "config: compilation_cache must be the path of a directory, or None; got int",
        ),
        (
            "compilation_cache_min_seconds",
            -1,
            functx.errors.ValueRangeError,
            "config: compilation_cache_min_seconds must be a number that is not negative; got -1",
        ),
        (
            "compilation_cache_min_bytes",
            "all",
            functx.errors.ValueRangeError,
            "config: compilation_cache_min_bytes must be a number that is not negative; got 'all'",
        ),
    ],
)
def test_wrong_settings_are_refused(name, value, error, message):
    with pytest.raises(error) as raised:
        functx.config.update(name, value)
    assert str(raised.value).startswith(message)

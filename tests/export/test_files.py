"""Files of exported programs: whole, cut, altered, newer, hostile, and read by another process."""

import copy
import io
import json
import pickle
import subprocess
import sys
import zipfile
from random import Random

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import export
from functx.core.errors import ExportError, ExportFileError, UnregisteredNameError
from functx.export.files import Archive, archive_of_bytes, archive_to_bytes
from functx.lowering.portable import lower_to_portable

x = np.array([0.5, -1.0, 2.0], "float32")
table = np.ones((2, 3), "float32")


def f(v):
    return {"out": xp.tanh(v) + table}


@pytest.fixture(scope="module")
def data():
    return export.export(f)(x).serialize()


def altered(data, texts=(), modules=(), arrays=None, **changes):
    """The bytes of the archive of `data` with other contents, and with the checksum of these."""
    archive = archive_of_bytes(data)
    return archive_to_bytes(
        Archive(
            archive.manifest | changes,
            {**archive.texts, **dict(texts)},
            {**archive.data, **dict(modules)},
            archive.arrays if arrays is None else arrays,
        )
    )


def test_a_file_holds_texts_arrays_and_stablehlo_that_other_tools_open(data, tmp_path):
    path = tmp_path / "f.zip"
    export.export(f)(x).save(path)
    assert path.read_bytes() == data
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        assert zipped.namelist() == [
            *("manifest.json", "program.txt", "stablehlo/cpu.mlirbc", "arrays/0.npy")
        ]
        manifest = json.loads(zipped.read("manifest.json"))
    assert manifest["inputs"][0] == ["v", ["f32", [3], False]]
    np.testing.assert_array_equal(np.load(path)["arrays/0"], table)
    assert not list(tmp_path.glob(".*"))


def test_no_path_of_this_machine_is_in_a_file(data):
    for name in ("manifest.json", "program.txt", "stablehlo/cpu.mlirbc"):
        content = zipfile.ZipFile(io.BytesIO(data)).read(name)
        assert b"/functx/" not in content and b"tests/export" not in content


def test_a_file_that_is_cut_anywhere_is_refused(data):
    for length in {0, 1, 3, 4, 100, *range(0, len(data), 97), len(data) - 1}:
        with pytest.raises(ExportFileError, match=r"missing or altered|no such file"):
            export.deserialize(data[:length])
    with pytest.raises(ExportFileError):
        export.deserialize(data + b"\n")


def test_a_file_with_any_other_byte_is_refused(data):
    random = Random(0)
    for position in [*random.sample(range(len(data)), 200), 0, len(data) - 1, len(data) - 80]:
        changed = bytearray(data)
        changed[position] ^= 1 << random.randrange(8)
        with pytest.raises(ExportFileError):
            export.deserialize(changed)


def test_a_newer_format_is_named(data):
    with pytest.raises(ExportFileError, match="at most 1; got format 2"):
        export.deserialize(data.replace(b"format 1, sha256", b"format 2, sha256"))


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(f)])
def test_other_files_are_no_exported_programs(content, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ExportFileError, match="other, but it is no such file"):
        export.load(path)
    with pytest.raises(FileNotFoundError):
        export.load(tmp_path / "missing")


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": []},
        {"inputs": [["v", ["f32", [3], False]]]},
        {"outputs": [["f32", [-1], False]]},
        {"outputs": "none"},
        {"in_tree": None, "out_tree": {"node": "tuple", "children": []}},
        {"out_tree": {"node": "dict", "keys": ["a", "b"], "children": ["*"]}},
        {"out_tree": {"node": "dict", "keys": [[1]], "children": ["*"]}},
        {"out_tree": {"node": "set", "children": []}},
        {"out_tree": {"node": "library", "module": "os", "name": "system", "children": []}},
        {
            "out_tree": {
                "node": "library",
                "module": "functx.core.tree",
                "name": "os",
                "children": [],
            }
        },
        {"written": [7]},
        {"constants": 5},
        {"signature": {"parameters": [1]}},
        {"signature": {"unknown": []}},
        {"rules": [1]},
        {"stablehlo": ["tpu"]},
        {"name": None},
        {"uses_64_bits": "no"},
    ],
    ids=repr,
)
def test_a_manifest_that_makes_no_sense_is_refused(data, changes):
    with pytest.raises(ExportFileError):
        export.deserialize(altered(data, **changes))


def test_missing_parts_are_refused(data):
    archive = archive_of_bytes(data)
    with pytest.raises(ExportFileError):
        export.deserialize(archive_to_bytes(archive._replace(texts={})))
    with pytest.raises(ExportFileError):
        export.deserialize(archive_to_bytes(archive._replace(manifest=[])))
    with pytest.raises(ExportFileError):
        export.deserialize(archive_to_bytes(archive._replace(arrays=[])))


@pytest.mark.parametrize("array", [table[:1], table.astype("float64"), np.zeros((2, 3), "uint32")])
def test_arrays_of_other_types_are_refused(data, array):
    with pytest.raises(ExportFileError, match="array must have the type"):
        export.deserialize(altered(data, arrays=[array]))


def test_pickled_arrays_are_never_read(data, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    stream = io.BytesIO()
    np.save(stream, np.array([Trap()], object), allow_pickle=True)
    archive = archive_of_bytes(data)
    with pytest.raises(ExportFileError):
        export.deserialize(
            archive_to_bytes(
                archive._replace(
                    arrays=[], data={**archive.data, "arrays/0.npy": stream.getvalue()}
                )
            )
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tanh v", "tanhh v", "name of a primitive"),
        ("tanh v", "no_such_operation v", "name of a primitive"),
        ("tanh v", "pure_callback[callback=<lambda>, results=(f32[3],)] v", "no Python objects"),
        ("tanh v", "sin v, v", "variable"),
        ("v: f32[3]", "v: f32[3], w: f32[3]", "inputs.*types"),
        ("return ", "return v, ", "outputs.*types"),
    ],
)
def test_a_program_of_another_text_is_refused_before_it_runs(data, old, new, message):
    text = archive_of_bytes(data).texts["program"]
    loaded = export.deserialize(altered(data, texts={"program": text.replace(old, new, 1)}))
    with pytest.raises(ExportFileError, match=message):
        functx.grad(lambda v: loaded(v)["out"].sum())(x)


def test_stablehlo_that_is_not_that_of_the_program_is_refused_before_it_runs(data):
    def loaded(module):
        return export.deserialize(altered(data, modules={"stablehlo/cpu.mlirbc": module}))

    with pytest.raises(ExportFileError, match="can read"):
        loaded(b"nothing")(x)
    other = lower_to_portable(functx.make_ir(xp.sin)(x), "cpu")
    with pytest.raises(ExportFileError, match="of the type of its program"):
        loaded(other)(x)
    calling = functx.make_ir(lambda v, t: functx.pure_callback(np.add, t, t, v + t))(x, table)
    lowered = jax.jit(lambda v, t: calling(v, t)).trace(x, table).lower(lowering_platforms=("cpu",))
    with pytest.raises(ExportFileError, match="must not call Python; got a call of"):
        loaded(portable(lowered))(x)


def portable(lowered):
    from jax.extend.mlir import serialize_portable_artifact
    from jax.extend.mlir.dialects import stablehlo

    version = stablehlo.get_current_version()
    return serialize_portable_artifact(lowered.as_text(), version)


def test_a_save_that_fails_leaves_the_file_as_it_was(data, tmp_path, monkeypatch):
    path = tmp_path / "f.zip"
    export.export(f)(x).save(path)
    with pytest.raises(ExportError):
        export.export(lambda v: functx.pure_callback(np.sin, v, v))(x).save(path)
    monkeypatch.setattr("functx.export.files._digest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export.deserialize(data).save(path)
    assert path.read_bytes() == data and [*tmp_path.iterdir()] == [path]


def test_the_first_run_of_a_file_neither_traces_nor_reads_the_program(data, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    loaded = export.deserialize(data)
    expected = f(x)["out"]
    with monkeypatch.context() as patches:
        patches.setattr("functx.export.programs.parse_program", fail)
        patches.setattr("functx.transforms.tracing_api.trace", fail)
        np.testing.assert_allclose(loaded(x)["out"], expected, rtol=1e-6)
        with pytest.raises(AssertionError):
            functx.grad(lambda v: loaded(v)["out"].sum())(x)


def test_names_are_checked_when_a_file_is_loaded(data):
    with pytest.raises(UnregisteredNameError, match="'some::operator'"):
        export.deserialize(altered(data, registered=["some::operator"]))
    node = {"node": "registered", "name": "some.Class", "auxdata": "", "children": ["*"]}
    with pytest.raises(UnregisteredNameError, match=r"'some\.Class'"):
        export.deserialize(altered(data, out_tree=node))


SCRIPT = """
import sys
import numpy as np
import functx
model = functx.export.load(sys.argv[1])
v = np.array([0.5, -1.0, 2.0], "float32")
assert "test_files.py" in str(model)
before = functx.cache_info()
out = model({"v": v}, scale=2.0)
grads = functx.grad(lambda v: model({"v": v}, scale=2.0)[1])(v)
second = functx.hessian(lambda v: model({"v": v}, scale=2.0)[1])(v)
np.savez(sys.argv[2], *out, grads, second)
"""


@functx.custom_jvp
def soft(v):
    return xp.log1p(xp.exp(v))


@soft.defjvp
def _soft_jvp(primals, tangents):
    return soft(*primals), 3.0 * soft(primals[0]) * tangents[0]


def test_another_process_runs_and_differentiates_a_file_without_this_code(tmp_path):
    def model(params, scale):
        h = soft(params["v"]) * scale + table
        return h, functx.lax.scan(lambda c, row: (c + xp.sum(row * row), None), 0.0, h)[0]

    export.export(model)({"v": x}, scale=2.0).save(tmp_path / "model.zip")
    arguments = [tmp_path / "model.zip", tmp_path / "out.npz"]
    subprocess.run([sys.executable, "-c", SCRIPT, *map(str, arguments)], check=True)
    found = [*np.load(arguments[1]).values()]
    loss = lambda v: model({"v": v}, scale=2.0)[1]  # noqa: E731
    expected = [*model({"v": x}, 2.0), functx.grad(loss)(x), functx.hessian(loss)(x)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def replaced_at_random(text, random):
    """`text` with a few characters changed, removed, repeated or put in."""
    parts = ["(", "1e999", "9" * 5000, "nan", "f64", "<f>", "@sin", "-1", "SavedRules(number=0)"]
    for _ in range(random.randint(1, 3)):
        i, j = random.randrange(len(text)), random.randrange(len(text))
        new = random.choice(
            ["", text[j : j + 9], random.choice(parts), chr(random.randrange(32, 127))]
        )
        text = text[:i] + new + text[i + random.randint(0, 2) :]
    return text


def with_another_part(value, random):
    """The JSON `value` with another value somewhere."""
    value = json.loads(json.dumps(value))
    places, pending = [], [value]
    while pending:
        part = pending.pop()
        keys = [*part] if isinstance(part, dict) else range(len(part))
        places += [(part, key) for key in keys]
        pending += [part[key] for key in keys if isinstance(part[key], (dict, list))]
    part, key = random.choice(places)
    part[key] = random.choice(
        [None, 0, -1, True, "x", [], {}, [1], {"node": "list"}, "f32", 10**30]
    )
    return value


@pytest.mark.parametrize("seed", range(4))
def test_hostile_files_are_read_or_refused(data, seed):
    random, archive = Random(seed), archive_of_bytes(data)
    text = archive.texts["program"]
    for _ in range(60):
        changed = {**archive.texts, "program": replaced_at_random(text, random)}
        manifest = with_another_part(archive.manifest, random)
        for each in (archive._replace(texts=changed), archive._replace(manifest=manifest)):
            try:
                loaded = export.deserialize(archive_to_bytes(each))
                assert loaded.program and str(loaded.signature)
            except (ExportFileError, UnregisteredNameError):
                pass


def test_brackets_without_end_are_refused(data):
    text = archive_of_bytes(data).texts["program"]
    deep = text.replace("tanh", f"reduce_sum[axes={'(' * 3000}{')' * 3000}]", 1)
    loaded = export.deserialize(altered(data, texts={"program": deep}))
    with pytest.raises(ExportFileError, match="nested without end"):
        _ = loaded.program


def test_exported_programs_are_pickled_and_copied_as_their_files(data):
    for again in (
        pickle.loads(pickle.dumps(export.export(f)(x))),
        copy.deepcopy(export.deserialize(data)),
    ):
        assert again.serialize() == data
        np.testing.assert_allclose(again(x)["out"], f(x)["out"], rtol=1e-6)

"""What keeps the repository honest: layers, documentation, examples."""

import ast
import io
import os
import re
import runpy
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

import functx
from functx.tools.reference import PAGES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "functx"
FILES = sorted(PACKAGE.rglob("*.py"))

# The packages and modules of functx, lowest first. Each imports only itself and those before it.
LAYERS = [
    "core",  # programs, primitives, tracing
    "ops",  # the primitives
    "errors",  # the errors, and the command that prints their pages
    "tree_util",
    "aten",  # PyTorch's names of primitives
    "transforms",  # rewrites, and the public transforms
    "passes",  # optimizations, some of which derivatives use through hooks of transforms
    "lowering",  # StableHLO, executables, jit
    "numpy",
    "flatten_util",  # pytrees as vectors
    "ref",  # mutable references
    "sparse",  # sparse Jacobians and Hessians, and Jacobians by a chosen mode
    "custom",  # rules, checkpoints, operators and solvers of users
    "lax",
    "random",
    "nn",
    "image",
    "scipy",
    "implicit",  # solutions with implicit derivatives
    "bounds",  # bounds of values over boxes of arguments
    "debug",
    "checkify",  # checks of values, and their failures as results
    "experimental",  # the names of jax.experimental
    "tools",
    "testing",
    "decomp",
    "ad_checkpoint",
    "custom_batching",
    "custom_derivatives",
    "library",
    "effects",  # effects of operators
    "interop",  # JAX functions as programs, and programs inside JAX
    "autograd",  # PyTorch's imperative autograd
    "compiled_autograd",  # its walks as programs
    "module_calls",  # modules called with given parameters
    "aot",  # a function as a forward and a backward program
    "export",  # programs that are saved and loaded
    "tree",  # pytrees, and their files
    "api",  # the public functions
    "__init__",  # the public names
]


def imported_modules(path):
    """The modules that a file imports, without those that only its annotations need."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module):
    """The package or module of functx that a dotted name starts with; None outside of functx."""
    parts = module.split(".")
    return parts[1] if parts[0] == "functx" and len(parts) > 1 else None


def layer_of_file(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_package_has_a_layer():
    assert {*map(layer_of_file, FILES)} == {*LAYERS}


def test_the_table_of_layers_names_every_layer_in_order():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## Layers\n")[1].split("\n## ")[0]
    cells = " ".join(re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE))
    assert re.sub(r"\.py|/", "", cells).split() == LAYERS[:-1]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    layer = layer_of_file(path)
    found = {layer_of(m) for m in imported_modules(path)} - {None}
    above = found - {*LAYERS[: LAYERS.index(layer) + 1]}
    assert not above, f"{path.name}, of layer {layer}, imports from {above}"


# The parts of JAX that the core may use: pytrees, settings, the classes of what JAX traces and raises, no
# array code.
CORE_MAY_IMPORT = {
    "builder.py": {"jax.core"},
    "errors.py": {"jax.dtypes", "jax.errors"},
    "jax_modules.py": {"jax"},
    "tree.py": {"jax.tree_util"},
    "types.py": {"jax"},
    "typing.py": {"jax"},
    "tracer.py": {"jax.core"},
    "wrapper_axes.py": {"jax.tree_util"},
    "wrappers.py": {"jax.tree_util"},
}


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if p.relative_to(PACKAGE).parts[0] in ("core", "transforms")],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_core_and_transforms_import_no_array_code_of_jax(path):
    found = {m for m in imported_modules(path) if m.split(".")[0] == "jax"}
    allowed = CORE_MAY_IMPORT.get(path.name, set()) if path.parent.name == "core" else set()
    assert all(any(m == a or m.startswith(a + ".") for a in allowed) for m in found), found


def test_no_private_module_of_jax_is_imported():
    for path in FILES:
        assert not any(m.startswith("jax._src") for m in imported_modules(path)), path


def test_a_name_of_the_operations_has_one_meaning():
    files = [path for path in (PACKAGE / "ops").glob("*.py") if path.stem != "__init__"]
    places = defaultdict(set)
    for path in files:
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            names = [getattr(t, "id", getattr(t, "name", "_")) for t in targets]
            for name in names:
                places[name].add(path.stem)
    twice = {n: p for n, p in places.items() if len(p) > 1 and not n.startswith("_")}
    assert not twice, "functx.ops exports these names from two modules"
    hidden = {path.stem for path in files} & {*places}
    assert not hidden, "a module of functx.ops hides a function of the same name"


def test_no_two_classes_of_the_package_have_one_name():
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_pages_are_what_the_generator_makes(page):
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == PAGES[page](), "run python -m functx.tools.reference"


def defined_names(path):
    """The names that a module defines, and those of its classes as `Class.name`."""
    for node in ast.parse(path.read_text()).body:
        yield from names_of(node)
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for part in node.body for name in names_of(part))


def names_of(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_every_term_of_the_glossary_exists_where_it_says():
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (?!term|---)(.*?) \|(.*)$", page, re.MULTILINE)
    assert len({term for term, _ in rows}) == len(rows) > 100
    for term, row in rows:
        name, file = re.search(r"`([\w.]+)` in `([\w/]+\.py)`", row).groups()
        assert name in defined_names(PACKAGE / file), f"{term}: no {name} in {file}"


def prose_of(path):
    """The text of a page, or the docstrings, comments and messages of a module, without code in backticks."""
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        prose = (tokenize.STRING, tokenize.COMMENT)
        text = "\n".join(
            t.string for t in tokens if t.type in prose and not t.string.startswith("f")
        )
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def test_prose_writes_sub_program_with_a_hyphen():
    for path in [*FILES, *(ROOT / "docs").rglob("*.md")]:
        assert not re.findall(r".*\bsubprogram.*", prose_of(path)), path


def test_every_public_name_has_a_docstring():
    missing = [n for n in functx.__all__ if not getattr(functx, n).__doc__]
    assert not missing


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("[0-9]*.py")), ids=lambda p: p.name
)
def test_every_example_runs(path, capsys):
    functx.compiled_autograd.reset()
    runpy.run_path(str(path), run_name="__main__")


def test_the_digits_example_trains(capsys):
    scope = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    assert scope["main"](steps=150) > 0.8
    assert "test accuracy" in capsys.readouterr().out


def run_in_fresh_process(code):
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


IMPORT_FUNCTX = """
import sys, jax
before = {*sys.modules}
import functx
new = {*sys.modules} - before
of_functx = {name for name in new if sys.modules[name].__name__.startswith("functx")}
assert all(name == "functx" or name.startswith("functx.core") for name in of_functx), of_functx
assert len(of_functx) < 30, of_functx
assert not [name for name in new if name.startswith("jax")], new
assert {*functx.__all__} <= {*dir(functx)}
"""


def test_importing_functx_loads_the_core_alone():
    run_in_fresh_process(IMPORT_FUNCTX)


FIRST_USES = {
    "a function": "functx.grad(lambda x: x * x)(3.0)",
    "a namespace": "functx.numpy.sin(1.0)",
    "a name of a module": "functx.from_jax(jax.numpy.sin)(1.0)",
    "a module of a package": "from functx.lax import cond; cond(True, abs, abs, 1.0)",
    "a transform by its module": "from functx.transforms.vmap import vmap; vmap(abs)(jax.numpy.ones(2))",
    "a primitive": "from functx.ops.arithmetic import Add; Add()(1.0, 2.0)",
    "a method that traced arrays lack": "functx.jit(lambda x: hasattr(x, 'relu'))(1.0)",
    "an option of JAX": "functx.config.compilation_cache",
    "parsing a program": "functx.Program.parse('program f(x: f32[3]):\\n  a: f32[3] = sin x\\n  return a')",
    "a star": "from functx import *; jit(grad(lambda x: x * x))(3.0)",
}


# Each use in a child of a process that has imported JAX alone.
EACH_USE_IN_A_CHILD = """
import os, jax
for name, use in {uses!r}.items():
    child = os.fork()
    if not child:
        import functx
        exec(use)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_whatever_is_used_first_loads_what_it_needs():
    run_in_fresh_process(EACH_USE_IN_A_CHILD.format(uses=FIRST_USES))


def test_every_public_name_exists():
    run_in_fresh_process("import functx; [getattr(functx, name) for name in functx.__all__]")
    of_api = {name for name in vars(functx.api) if not name.startswith("_")}
    assert of_api <= {*functx.__all__}


REGISTRY = """
from importlib import import_module
from pkgutil import walk_packages
import functx
found = {*functx.Primitive.registry}
for module in walk_packages(functx.__path__, "functx."):
    import_module(module.name)
later = {*functx.Primitive.registry} - found
assert len(found) > 200
assert not later, f"{later}: import its module in functx/api.py, or name it in Registry.unloaded (functx/core/primitive_registry.py)"
"""


def test_the_registry_names_the_primitives_of_modules_not_imported_yet():
    run_in_fresh_process(REGISTRY)


def test_importing_functx_starts_no_backend():
    code = "import functx, jax; from jax.extend import backend; print('imported')"
    assert run_in_fresh_process(code) == "imported"

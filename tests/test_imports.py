"""The house: imports point down (DESIGN 3), and `import pyengine` stays light."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pyengine"

# What a module may import of pyengine; a folder's line holds for all its files, which may also import
# each other. errors is open to everyone.
ALLOWED = {
    "__init__": set(),
    "errors": set(),
    "native": {"machine"},
    "machine": set(),
    "thermal": {"machine"},
    "prefix": set(),
    "cache": {"prefix"},
    "metered": set(),
    "sandbox": {"metered"},
    "mapped": {"native"},
    "metadata": {"native", "mapped"},
    "gguf": {"native", "mapped", "metadata"},
    "quants": {"native"},
    "sampling": {"native"},
    "sequences": set(),
    "schedule": {"cache", "sequences"},
    "speculate": set(),
    "mixes": {"native", "quants"},
    "imatrix": {"gguf", "mapped"},
    "convert": {"mixes", "imatrix", "machine", "gguf", "mapped", "native", "quants", "request"},
    "draft": {"cache", "fit", "gguf", "plan", "sampling", "speculate"},
    "tokenizer": {"native"},
    "chat": {"sandbox"},
    "catalog": set(),
    "arch": set(),
    "plan": {"native", "quants", "arch"},
    "fit": {"machine", "plan", "cache", "gguf", "native"},
    "answer": {"native", "sampling", "sequences"},
    "engine": {"answer", "native", "cache", "schedule", "sequences", "plan", "sampling", "gguf"},
    "stream": {"engine", "tokenizer", "chat", "sampling"},
    "tune": {"native", "plan", "catalog", "machine", "__init__"},
    "verdict": {"arch", "chat", "fit", "gguf", "machine", "native", "plan", "tokenizer", "tune"},
    "yardstick": {"native", "machine"},
    "request": {"sampling"},
    "gbnf": set(),
    "pattern": set(),
    "schema": {"pattern"},
    "grammar": {"gbnf", "schema", "native"},
    "choose": {"request", "sampling", "stream", "native"},
    "statefile": set(),
    "session": {"statefile", "request"},
    "embed": {"request", "stream"},
    "llama": {"embed", "session", "draft", "speculate", "request", "grammar", "choose", "fit", "tune", "engine", "stream", "tokenizer", "chat", "sampling", "plan", "gguf", "machine", "catalog"},
    "evaluate": {"embed", "llama", "stream", "draft", "fit", "gguf", "native", "request", "sampling"},
    "aio": {"embed", "llama"},
    "serve": {"aio", "embed", "llama", "request", "sampling", "__init__"},
    "compat": {"llama", "grammar", "gguf", "tokenizer", "chat", "sampling", "native", "machine"},
    "cli": {"convert", "mixes", "evaluate", "verdict", "serve", "llama", "fit", "tune", "yardstick", "thermal", "stream", "plan", "gguf", "mapped", "metadata", "tokenizer", "chat", "catalog", "machine", "native", "__init__"},
}
HEAVY = ("numpy", "jinja2", "sentencepiece", "tokenizers", "rich", "huggingface_hub", "llguidance", "matplotlib")


def unit(path):
    """The line of ALLOWED that holds for a file."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """(module, at the top of the file) of every import; pyengine's own as "pyengine.x"."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ("pyengine", *path.relative_to(PACKAGE).parent.parts)
    top = {id(n) for n in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join(package[: len(package) - node.level + 1])
            names = [f"{base}.{node.module}"] if node.module else [f"{base}.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "pyengine" else [node.module]
        else:
            continue
        for name in names:
            yield name, id(node) in top


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = unit(path)
    assert own in ALLOWED, f"{own} has no line in ALLOWED: say what it may import"
    for name, _ in imports(path):
        parts = name.split(".")
        if parts[0] != "pyengine":
            continue
        other = parts[1] if len(parts) > 1 else "__init__"
        if other.startswith("__"):
            other = "__init__"
        if other == "_native":
            assert own == "native", "native.py is the only importer of the C module"
        else:
            assert other in ALLOWED[own] | {own, "errors"}, f"{path.name} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_in_functions(path):
    for name, top in imports(path):
        assert not (top and name.split(".")[0] in HEAVY) or path.name in ("sandbox.py", "metered.py"), f"{path.name} imports {name} at its top"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_of_a_size_to_be_read(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 520
    assert ast.get_docstring(ast.parse(text)), f"{path.name} does not say what it is"
    assert "TYPE_CHECKING" not in text


@pytest.mark.parametrize("path", sorted((PACKAGE / "arch").glob("*.py")), ids=lambda p: p.name)
def test_architectures_name_no_type_isa_fusion_or_layout(path):
    """Whatever a file of arch/ says besides its docstrings: no tensor type, tier or instruction by name, and none of the words for
    how a model is run."""
    from pyengine.native import TIERS, rows
    from pyengine.plan import ops
    from pyengine.quants import TYPES

    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    found = set(re.findall(r"[a-z0-9]+", ast.unparse(tree).lower())) | set(re.findall(r"\w+", ast.unparse(tree)))
    types = {t.name.lower() for t in TYPES.values()}
    assert {"f16", "q4_k", "mxfp4"} <= types and {"avx2", "neon"} <= set(TIERS)
    layout = {"page", "pages", "slot", "slots", "arena", "stride", "align", "fuse", "fused", "fusion", "tile", "tiles", "repack", "lanes", "threads", "thread",
              "chunk", "kv_type", "isa", "avx", "neon", "simd", "blas", "gpu"}
    names = types | {r.name.lower() for r in rows()} | {t.lower() for t in TIERS} | layout
    assert not (wrong := {w for w in found if w.lower() in names}), f"{path.name} speaks of {sorted(wrong)}"
    assert not (wrong := found & set(ops.OPS)), f"{path.name} names instructions: {sorted(wrong)}"


def test_import_is_light():
    """import pyengine loads nothing heavy, not even the C module; naming Llama still loads no numpy or jinja2."""
    code = (
        "import sys, pyengine; a = set(sys.modules); pyengine.Llama; b = set(sys.modules)\n"
        f"heavy = {HEAVY!r}\n"
        "print([m for m in heavy if m in a], 'pyengine._native' in a, [m for m in heavy if m in b])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == "[] False []"


def test_every_kernel_row_has_a_test_and_a_bench_line():
    """Kernels enter with a row, a test and a bench line: both walk pe_rows(), so a row cannot miss them."""
    assert "rows(" in (ROOT / "tests/kernels/test_mm.py").read_text()
    assert "rows(" in (ROOT / "bench/kernels.py").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "csrc").glob("mm_*_*.c")), ids=lambda p: p.name)
def test_no_conditional_compilation_in_kernel_bodies(path):
    """One file per family and ISA: at most the guard around the whole file and the target pragmas."""
    depth = 0
    for line in path.read_text().splitlines():
        if line.startswith("#if"):
            depth += 1
        elif line.startswith("#endif"):
            depth -= 1
        assert depth <= 2, f"{path.name}: {line}"

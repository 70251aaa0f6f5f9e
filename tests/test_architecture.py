"""The layers of the house: a folder imports only what stands before it (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. Root modules that are no stage stand beside the stage they serve.
ORDER = [
    "version", "lazy", "errors", "models", "bricks", "db", "generator", "constructor", "analyzer",
    "console", "options", "inventory", "cli", "__main__",
]  # fmt: skip

STAGES = [name for name in ORDER if (ROOT / name).is_dir()]

# Module prefixes that may be imported in these places only, wherever in the file the import stands.
CONFINED = {
    "onnx": ("models/", "bricks/", "generator/"),
    "onnx_graphsurgeon": ("bricks/", "generator/"),
    "onnxruntime": ("generator/",),
    "torch": ("models/zoo/exports", "generator/backends/"),
    "transformers": ("models/zoo/exports",),
    "onnxscript": ("models/zoo/exports",),
    "mxnet": ("generator/backends/",),
    "openvino": ("generator/backends/",),
    "cupy": ("generator/backends/",),
    "sqlalchemy": ("db/",),
    "alembic": ("db/",),
    "matplotlib": ("analyzer/",),
    "click": ("cli.py", "console.py", "inventory.py", "options.py"),
    "rich": ("console.py",),
}

# Expensive to import: only inside the function that needs them. Migrations are run by alembic itself.
HEAVY = {"onnxruntime", "torch", "transformers", "pandas", "matplotlib", "alembic", "pyarrow", "rich", "onnx.reference"}
# Modules about PyTorch are imported by the backend's functions alone.
HEAVY_ALLOWED = ("db/migrations/", "generator/backends/torch/")


def modules() -> list[Path]:
    """Every module of the package, as a path below the root."""
    files = [*ROOT.glob("*.py"), *(path for stage in STAGES for path in (ROOT / stage).rglob("*.py"))]
    return sorted(path.relative_to(ROOT) for path in files)


def imports(module: Path, *, top_level: bool = False) -> Iterator[tuple[str, int]]:
    """Imported modules with line; relative ones resolved to ``dlbricks.…``.

    Args:
        module: Path below the root.
        top_level: Only what importing the module executes: not in functions, not under TYPE_CHECKING.
    """
    package = ["dlbricks", *module.parent.parts]
    for node in statements(ast.parse((ROOT / module).read_text()), top_level=top_level):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - (node.level - 1)] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source, node.lineno
            yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)


def statements(tree: ast.AST, *, top_level: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if top_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if top_level and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node, top_level=top_level)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@pytest.mark.parametrize("module", [m for m in modules() if m.name != "__init__.py" or m.parent.parts], ids=str)
def test_imports_only_what_stands_before(module: Path) -> None:
    own = module.parts[0].removesuffix(".py")
    allowed = set(ORDER[: ORDER.index(own) + 1])

    wrong = [
        f"{module}:{line} imports {name}"
        for name, line in imports(module)
        if name.startswith("dlbricks.") and name.split(".")[1] in ORDER and name.split(".")[1] not in allowed
    ]

    assert not wrong


def test_every_root_module_has_a_place_in_the_order() -> None:
    roots = {path.parts[0].removesuffix(".py") for path in modules()} - {"__init__"}

    assert roots == set(ORDER)


@pytest.mark.parametrize("module", modules(), ids=str)
def test_imports_inside_the_package_are_relative(module: Path) -> None:
    tree = ast.parse((ROOT / module).read_text())

    absolute = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(within(alias.name, "dlbricks") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and not node.level and within(node.module or "", "dlbricks"))
    ]

    assert not absolute


@pytest.mark.parametrize("module", modules(), ids=str)
def test_confined_packages_stay_in_their_place(module: Path) -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for name, line in imports(module)
        for prefix, places in CONFINED.items()
        if within(name, prefix) and not module.as_posix().startswith(places)
    ]

    assert not wrong


@pytest.mark.parametrize("module", modules(), ids=str)
def test_heavy_packages_are_imported_by_the_function_that_needs_them(module: Path) -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for name, line in imports(module, top_level=True)
        if any(within(name, prefix) for prefix in HEAVY) and not module.as_posix().startswith(HEAVY_ALLOWED)
    ]

    assert not wrong


@pytest.mark.parametrize("module", modules(), ids=str)
def test_the_library_neither_prints_nor_exits(module: Path) -> None:
    if module.name in {"cli.py", "console.py"}:
        pytest.skip("the command line does both")
    tree = ast.parse((ROOT / module).read_text())

    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]

    assert not {"print", "sys.exit", "exit", "quit", "os._exit"} & set(calls)


def test_the_command_line_starts_without_numpy_and_onnx() -> None:
    code = "import sys, dlbricks.cli; print(*sorted(m for m in sys.modules if '.' not in m))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "click" in loaded
    assert not {"numpy", "onnx", "networkx", "sqlalchemy", "onnxruntime", "pandas", "matplotlib", "rich"} & loaded


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import dlbricks; print(*sorted(set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name for name in done.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names}
    assert loaded == {"dlbricks", "dlbricks.lazy", "dlbricks.version"}


def test_modules_stay_readable() -> None:
    long = {str(path): n for path in modules() if (n := len((ROOT / path).read_text().splitlines())) > 400}

    assert not long

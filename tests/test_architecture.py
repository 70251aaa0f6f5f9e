"""The layers of the house: a folder imports only what stands before it (docs/contributing/architecture.md)."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest
from dlbricks.db import values as stored

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. Root modules that are no stage stand beside the stage they serve.
ORDER = [
    "version", "lazy", "errors", "tabular", "models", "bricks", "db", "generator", "constructor", "analyzer",
    "cli", "__main__",
]  # fmt: skip

STAGES = [name for name in ORDER if (ROOT / name).is_dir()]

# The rooms of a folder, lowest first: a room imports only those before it. Modules beside them stand anywhere.
ROOMS = {
    "bricks": ["canonical", "costs", "inference", "graph", "cutting", "suite"],
    "generator": ["machine", "device", "network", "backends", "worker", "decomposition", "measurement", "planning",
                  "fleet"],
    "constructor": ["uncertainty"],
    "models": ["zoo"],
    "analyzer": ["estimation", "comparison", "manifests", "history", "rewriting", "findings", "report", "decoding"],
    "db": ["samples"],
}  # fmt: skip

MOST_LINES = 800
"""Lines of code of a module, without docstrings, comments and blank lines; 100 to 500 are usual."""

# Module prefixes that may be imported in these places only, wherever in the file the import stands.
CONFINED = {
    "onnx": ("models/", "bricks/", "generator/", "analyzer/rewriting/"),
    "onnx_graphsurgeon": ("generator/network/",),
    "onnxruntime": ("generator/", "analyzer/rewriting/"),
    "torch": ("models/zoo/exports", "generator/backends/"),
    "transformers": ("models/zoo/exports"),
    "onnxscript": ("models/zoo/exports",),
    "mxnet": ("generator/backends/",),
    "openvino": ("generator/backends/",),
    "cupy": ("generator/backends/", "generator/device/"),
    "sqlalchemy": ("db/",),
    "matplotlib": ("analyzer/",),
    "jinja2": ("analyzer/report/page/",),
    "click": ("cli/",),
    "rich": ("cli/console.py",),
    "procrastinate": ("generator/fleet/queue.py",),
    "psycopg": ("generator/fleet/server.py",),
}

# Expensive to import: only inside the function that needs them.
HEAVY = {
    "onnxruntime", "torch", "transformers", "pandas", "matplotlib", "jinja2", "pyarrow", "rich",
    "onnx.reference", "sklearn",
}  # fmt: skip
# Modules about PyTorch are imported by the backend's functions alone.
_TORCH = ("torch_graph.py", "profiled_kernels.py", "strided_views.py", "operators/")
HEAVY_ALLOWED = tuple(f"generator/backends/torch/{name}" for name in _TORCH)


def modules() -> list[Path]:
    """Every module of the package, as a path below the root."""
    files = [*ROOT.glob("*.py"), *(path for stage in STAGES for path in (ROOT / stage).rglob("*.py"))]
    return sorted(path.relative_to(ROOT) for path in files if path.name != "setup.py")


def test_every_module_has_a_name_of_its_own():
    """But for the modules of backends with the class that the registry looks for."""
    apart = {"__init__.py", "__main__.py", "backend.py"}
    counts = Counter(module.name for module in modules() if module.name not in apart)

    assert [name for name, count in counts.items() if count > 1] == []


@functools.cache
def parsed(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


@functools.cache
def imports(module: Path, *, top_level: bool = False) -> list[tuple[str, int]]:
    """Imported modules with line; relative ones resolved to ``dlbricks.…``.

    Args:
        module: Path below the root.
        top_level: Only what importing the module executes: not in functions, not under TYPE_CHECKING.
    """
    package = ["dlbricks", *module.parent.parts]
    found: list[tuple[str, int]] = []
    for node in statements(parsed(module), top_level=top_level):
        if isinstance(node, ast.Import):
            found += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - (node.level - 1)] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found.append((source, node.lineno))
            found += ((f"{source}.{alias.name}", node.lineno) for alias in node.names)
    return found


def statements(tree: ast.AST, *, top_level: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if top_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if top_level and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node, top_level=top_level)


@functools.cache
def arrows() -> list[tuple[Path, Path]]:
    """Every import between two modules of the package, wherever in the file it stands: importer and imported."""
    places = {".".join(("dlbricks", *path.with_suffix("").parts)).removesuffix(".__init__"): path for path in modules()}
    return [
        (module, target)
        for module in modules()
        for name, _ in imports(module)
        if (target := places.get(name)) is not None and target != module
    ]


def room(module: Path, folder: str) -> str | None:
    """The room or module of a folder that a module stands in; None where it stands elsewhere."""
    inside = module.relative_to(folder).parts if module.is_relative_to(folder) else ()
    return inside[0].removesuffix(".py") if inside else None


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def test_imports_only_what_stands_before() -> None:
    wrong = []
    for module in modules():
        own = module.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        allowed = set(ORDER[: ORDER.index(own) + 1])
        wrong += [
            f"{module}:{line} imports {name}"
            for name, line in imports(module)
            if name.startswith("dlbricks.") and name.split(".")[1] in ORDER and name.split(".")[1] not in allowed
        ]

    assert not wrong


def test_the_constructor_is_arithmetic() -> None:
    """Values come in and values go out: it asks no generator, opens no model and reads no database."""
    values = {"dlbricks.db", "dlbricks.models", "dlbricks.models.ModelSource"}
    values |= {f"dlbricks.db.{name}" for name, kind in vars(stored).items() if inspect.isclass(kind)}
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in imports(module)
        if module.parts[0] == "constructor"
        and any(within(name, f"dlbricks.{folder}") for folder in ("models", "db", "generator", "analyzer"))
        and not any(within(name, f"dlbricks.db.{room}") for room in ("values", "samples"))
        and name not in values
    ]
    code = "import sys, dlbricks.constructor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()

    assert not wrong
    assert "dlbricks.constructor.construction" in loaded
    assert not [name for name in loaded if within(name, "dlbricks.generator") or within(name, "sqlalchemy")]


def test_every_root_module_has_a_place_in_the_order() -> None:
    roots = {path.parts[0].removesuffix(".py") for path in modules()} - {"__init__"}

    assert roots == set(ORDER)


@pytest.mark.parametrize("folder", ROOMS)
def test_a_room_imports_only_what_stands_before_it(folder: str) -> None:
    order = ROOMS[folder]
    wrong = [
        f"{source} imports {target}"
        for source, target in arrows()
        if (one := room(source, folder)) in order
        and (other := room(target, folder)) in order
        and order.index(one) < order.index(other)
    ]

    assert not wrong


def test_the_rooms_of_two_runtimes_know_nothing_of_each_other() -> None:
    folder = "generator/backends"
    runtimes = {path.name for path in (ROOT / folder).iterdir() if (path / "__init__.py").is_file()}
    wrong = [
        f"{source} imports {target}"
        for source, target in arrows()
        if {room(source, folder), room(target, folder)} <= runtimes and room(source, folder) != room(target, folder)
    ]

    assert runtimes == {"onnxruntime", "torch", "openvino", "mxnet", "cublas", "cudnn", "cupy"}
    assert not wrong


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_has_a_place_in_the_order(folder: str) -> None:
    assert {path.name for path in (ROOT / folder).iterdir() if (path / "__init__.py").is_file()} == set(ROOMS[folder])


def test_no_folder_has_a_circle_among_what_it_holds() -> None:
    circles = []
    for folder in {parent for module in modules() for parent in module.parents}:
        inside = nx.DiGraph()
        for source, target in arrows():
            one, other = room(source, folder.as_posix()), room(target, folder.as_posix())
            if one and other and one != other and "__init__" not in {one, other}:
                inside.add_edge(one, other)
        circles += [
            (str(folder), sorted(found)) for found in nx.strongly_connected_components(inside) if len(found) > 1
        ]

    assert not circles


def test_every_room_says_what_may_stand_in_it() -> None:
    rooms = [path for path in modules() if path.name == "__init__.py" and len(path.parts) > 2]

    silent = [str(path) for path in rooms if not ast.get_docstring(parsed(path))]

    assert rooms
    assert not silent


def test_imports_inside_the_package_are_relative() -> None:
    absolute = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node in ast.walk(parsed(module))
        if (isinstance(node, ast.Import) and any(within(alias.name, "dlbricks") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and not node.level and within(node.module or "", "dlbricks"))
    ]

    assert not absolute


def test_confined_packages_stay_in_their_place() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in imports(module)
        for prefix, places in CONFINED.items()
        if within(name, prefix) and not module.as_posix().startswith(places)
    ]

    assert not wrong


def test_heavy_packages_are_imported_by_the_function_that_needs_them() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in imports(module, top_level=True)
        if any(within(name, prefix) for prefix in HEAVY) and not module.as_posix().startswith(HEAVY_ALLOWED)
    ]

    assert not wrong


def test_the_library_neither_prints_nor_exits() -> None:
    loud = [
        f"{module}:{node.lineno}"
        for module in modules()
        if module.parts[0] != "cli"  # the command line does both
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.exit", "exit", "quit", "os._exit"}
    ]

    assert not loud


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
    long = {str(path): count for path in modules() if (count := len(code_lines(path))) > MOST_LINES}

    assert not long


def code_lines(module: Path) -> set[int]:
    """Numbers of the lines of a module that hold code."""
    text = (ROOT / module).read_text()
    noise = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in noise:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


_PRIVATE_WORDS = ("stored as such", "computed once", "witnesses", "towers", "demand", "did not answer 'call'")
"""Words of the code, which no answer, message or page uses."""


def test_answers_and_messages_use_the_words_of_the_field() -> None:
    said = []
    for module in modules():
        tree = parsed(module)
        documentation = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        said += [
            f"{module}:{node.lineno} says {word!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
            for word in _PRIVATE_WORDS
            if word in node.value
        ]
    pages = [*(ROOT / "analyzer/report/page/templates").iterdir()]
    said += [f"{page.name} says {word!r}" for page in pages for word in _PRIVATE_WORDS if word in page.read_text()]

    assert pages
    assert not said

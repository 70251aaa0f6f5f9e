"""Bad input on the command line: one clear line, the documented exit code, and nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

Cli = Callable[..., Any]


def _dense(path: Path, **edit: Any) -> onnx.ModelProto:
    """A one-layer model; ``edit`` changes its opset or the shape of its input."""
    shape = edit.get("shape", [1, 8])
    node = helper.make_node(edit.get("operator", "Relu"), ["x"], ["y"], domain=edit.get("domain", ""))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    imports = [helper.make_opsetid("", edit.get("opset", 17))]
    if edit.get("domain"):
        imports.append(helper.make_opsetid(edit["domain"], 1))
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(model, path)
    return model


def _external(path: Path, location: str, *, write: bool) -> None:
    """A MatMul whose weight is an external file at ``location``."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64, 64], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        initializer=[tensor],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    if write:
        (path.parent / location).write_bytes(b"\0" * 64 * 64 * 4)


def not_onnx(path: Path) -> None:
    path.write_text("this is a text, and a long one at that\n" * 50)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    data = _branches_bytes(path)
    path.write_bytes(data[: len(data) * 2 // 3])


def _branches_bytes(path: Path) -> bytes:
    _dense(path)
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [100], [0.5] * 100))
    return model.SerializeToString()


def future_opset(path: Path) -> None:
    _dense(path, opset=999)


def missing_external(path: Path) -> None:
    _external(path, "weights.bin", write=False)


def short_external(path: Path) -> None:
    _external(path, "weights.bin", write=True)
    path.with_name("weights.bin").write_bytes(b"\0" * 100)


def traversal(path: Path) -> None:
    outside = path.parent / "models"
    outside.mkdir()
    _external(path, "../secret.bin", write=False)


def absolute(path: Path) -> None:
    _external(path, "/etc/hostname", write=False)


def symlinked(path: Path) -> None:
    target = path.parent.parent / f"{path.parent.name}-outside.bin"
    target.write_bytes(b"\0" * 64 * 64 * 4)
    path.with_name("weights.bin").symlink_to(target)
    _external(path, "weights.bin", write=False)


def unreadable_folder(path: Path) -> None:
    path.mkdir()


MODELS = [
    (not_onnx, "not ONNX"),
    (empty, "empty"),
    (truncated, "truncated"),
    (future_opset, "opset"),
    (missing_external, "weights.bin"),
    (short_external, "weights.bin"),
    (traversal, "secret.bin"),
    (absolute, "/etc/hostname"),
    (symlinked, "weights.bin"),
]


@pytest.mark.parametrize(("make", "message"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("command", ["generate bad.onnx -o suite", "estimate bad.onnx", "measure bad.onnx"])
def test_a_bad_model_is_one_line_in_its_row(
    cli: Cli, here: Path, make: Callable[[Path], None], message: str, command: str
) -> None:
    make(here / "bad.onnx")
    _database(here / "dlbricks.db")

    done = cli(*command.split(), "--json")

    (row,) = done.json["results"]
    assert done.code == 1
    assert message in row["error"]
    assert "bad" in row["error"]
    assert "\n" not in row["error"]
    assert "Traceback" not in done.err
    assert not Path("suite").exists()


def test_an_unknown_operator_without_a_shape_is_skipped_by_name(cli: Cli, here: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Frobnicate", ["a"], ["b"], domain="com.example", name="the_odd_one"),
        helper.make_node("Relu", ["b"], ["c"]),
    ]
    graph = helper.make_graph(nodes, "g", [value], [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), here / "bad.onnx")

    done = cli("generate", "bad.onnx", "-o", "suite", "--json")

    (row,) = done.json["results"]
    assert done.code == 3
    assert row["error"] is None
    assert (row["layers"], row["sequences"]) == (3, 1)
    assert row["skipped"][0]["layer"] == "the_odd_one"
    assert all(skipped["reason"] for skipped in row["skipped"])


@pytest.mark.parametrize("domain", ["", "com.example"])
def test_an_unknown_operator_with_a_shape_is_a_brick_whose_failure_is_stored(cli: Cli, here: Path, domain: str) -> None:
    _dense(here / "bad.onnx", operator="Frobnicate", domain=domain)

    made = cli("generate", "bad.onnx", "-o", "suite", "--json")
    ran = cli("run", "suite", "--json")
    estimated = cli("estimate", "bad.onnx", "--json")

    (row,) = made.json["results"]
    assert (row["sequences"], row["macs"]) == (1, None)
    assert list(row["uncounted"].values()) == [1]
    assert ran.code == 3
    assert (ran.json["measured"], ran.json["failed"]) == (0, 1)
    assert "Frobnicate" in ran.json["results"][0]["reason"]
    assert estimated.code == 3
    assert estimated.json["results"][0]["estimate_ms"] is None
    assert "Frobnicate" in estimated.json["results"][0]["missing"][0]["reason"]


def test_an_unbound_dimension_is_named_with_the_option_that_binds_it(cli: Cli, here: Path) -> None:
    _dense(here / "bad.onnx", shape=["batch", "frobs"])

    done = cli("generate", "bad.onnx", "-o", "suite", "--json")
    bound = cli("generate", "bad.onnx", "--dim", "frobs=7", "-o", "suite", "--json")

    (row,) = done.json["results"]
    assert (done.code == 1 and "--dim" in row["error"] and "frobs" in row["error"]) or "frobs" in row["bound"]
    assert bound.code == 0
    assert bound.json["results"][0]["bound"]["frobs"] == 7


def test_a_dimension_that_no_model_has_is_wrong_usage(cli: Cli, here: Path) -> None:
    _dense(here / "good.onnx", shape=["batch", 8])
    _database(here / "dlbricks.db")

    for command in ("generate good.onnx -o suite", "estimate good.onnx", "measure good.onnx"):
        done = cli(*command.split(), "--dim", "nosuch=3")

        assert done.code == 2
        assert "nosuch" in done.error
    assert not Path("suite").exists()


def test_a_model_that_is_not_there_is_named(cli: Cli, here: Path) -> None:
    (row,) = cli("generate", "sqeezenet", "-o", "suite", "--json").json["results"]

    assert "sqeezenet" in row["error"]
    assert "squeezenet" in row["error"]  # did you mean


# suites -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def suite(cli: Cli, branches: Path) -> Path:
    assert cli("generate", branches, "-o", "suite").code == 0
    return Path("suite")


def no_suite(suite: Path) -> None:
    shutil.rmtree(suite)


def missing_manifest(suite: Path) -> None:
    (suite / "manifest.json").unlink()


def broken_manifest(suite: Path) -> None:
    (suite / "manifest.json").write_text("{")


def foreign_manifest(suite: Path) -> None:
    (suite / "manifest.json").write_text('{"name": "something else"}')


def newer_manifest(suite: Path) -> None:
    path = suite / "manifest.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))


def missing_brick(suite: Path) -> None:
    next((suite / "bricks").iterdir()).unlink()


def tampered_brick(suite: Path) -> None:
    path = sorted((suite / "bricks").iterdir())[0]
    path.write_bytes(path.read_bytes() + b"\0")


def swapped_brick(suite: Path) -> None:
    first, second, *_ = sorted((suite / "bricks").iterdir())
    first.write_bytes(second.read_bytes())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_suite, "is not a suite"),
        (missing_manifest, "is not a suite"),
        (broken_manifest, "is not JSON"),
        (foreign_manifest, "is not a suite"),
        (newer_manifest, "newer dlbricks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_suite_is_one_line_and_nothing_is_measured(
    cli: Cli, suite: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(suite)

    done = cli("run", suite)

    assert done.code == 1
    assert message in done.error
    assert done.out == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing_brick, "lacks the file of brick"),
        (tampered_brick, "is not the file that the suite's manifest names"),
        (swapped_brick, "is not the file that the suite's manifest names"),
    ],
)
def test_a_bad_brick_is_one_line_and_the_others_are_measured(
    cli: Cli, suite: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(suite)

    done = cli("run", suite)
    counts = cli("run", suite, "--json").json

    assert done.code == 3
    (row,) = counts["results"]
    assert message in row["reason"]
    assert (counts["failed"], counts["remaining"]) == (1, 0)
    assert counts["reused"] == counts["bricks"] - 1


def test_a_folder_that_is_no_suite_is_not_overwritten(cli: Cli, branches: Path) -> None:
    precious = Path("precious/thesis.txt")
    precious.parent.mkdir()
    precious.write_text("years of work")

    done = cli("generate", branches, "-o", "precious")

    assert done.code == 1
    assert "is not a suite" in done.error
    assert precious.read_text() == "years of work"


# databases ----------------------------------------------------------------------------------------------------------


def _database(path: Path) -> Path:
    """A new, empty database."""
    from dlbricks.db import Store

    Store.open(path).close()
    return path


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def no_database(path: Path) -> None:
    path.write_text("dear diary, " * 200)


def newer_database(path: Path) -> None:
    _database(path)
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        (table,) = [name for name in tables if "revision" in name or "version" in name]
        (column, *_) = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"UPDATE {table} SET {column} = '9999'")
    connection.close()


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (foreign_database, "bad.db"),
        (no_database, "bad.db"),
        (newer_database, "newer"),
        (folder, "bad.db"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize(
    "command", ["run suite", "estimate branches.onnx", "measure branches.onnx", "db info", "db upgrade"]
)
def test_a_bad_database_is_one_line_and_stays_as_it_was(
    cli: Cli, suite: Path, make: Callable[[Path], None], message: str, command: str
) -> None:
    path = Path("bad.db")
    make(path)
    before = path.read_bytes() if path.is_file() else None

    done = cli(*command.split(), "--db", path)

    assert done.code == 1
    assert message in done.error
    assert done.out == ""
    assert before is None or path.read_bytes() == before


@pytest.mark.slow
def test_a_locked_database_is_one_line(cli: Cli, suite: Path) -> None:
    _database(Path("held.db"))
    holder = sqlite3.connect("held.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        done = cli("run", suite, "--db", "held.db")
    finally:
        holder.close()

    assert done.code == 1
    assert "held.db" in done.error
    assert cli("db", "info", "--db", "held.db").code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only files")
def test_a_read_only_database_is_one_line(cli: Cli, suite: Path) -> None:
    path = _database(Path("fixed.db"))
    path.chmod(0o444)

    done = cli("run", suite, "--db", path)

    assert done.code == 1
    assert "fixed.db" in done.error


def test_a_database_that_is_not_there_is_named(cli: Cli, suite: Path) -> None:
    for command in ("estimate branches.onnx", "db info", "db upgrade", "db export out.db", "brick list"):
        done = cli(*command.split(), "--db", "nosuch.db")

        assert done.code == 1
        assert "nosuch.db" in done.error
        assert not Path("nosuch.db").exists()
    assert cli("db", "merge", "nosuch.db", "--db", "mine.db").code == 1


# full disks ---------------------------------------------------------------------------------------------------------


def _limited(bytes_per_file: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that cannot write files beyond a size, as on a disk that is full."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead of killing the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_per_file, bytes_per_file))

    command = [sys.executable, "-m", "dlbricks", *arguments]  # Python would keep half a compiled file
    own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, preexec_fn=limit)


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("dlbricks: ")]
    assert "Traceback" not in done.stderr
    return line


def test_a_full_disk_leaves_the_old_suite(cli: Cli, suite: Path) -> None:
    before = {path: path.read_bytes() for path in suite.rglob("*") if path.is_file()}

    line = _one_line(_limited(64, "generate", "branches.onnx", "-g", "2", "-o", "suite"))

    assert "suite" in line
    assert {path: path.read_bytes() for path in suite.rglob("*") if path.is_file()} == before
    assert {path.name for path in Path().iterdir()} == {"branches.onnx", "suite"}


@pytest.mark.slow
def test_a_full_disk_leaves_the_database_sound(cli: Cli, suite: Path) -> None:
    _database(Path("dlbricks.db"))
    size = Path("dlbricks.db").stat().st_size

    line = _one_line(_limited(size, "run", "suite", "--visits", "10"))

    assert "dlbricks.db" in line or "No space" in line or "too large" in line
    assert cli("db", "info").code == 0
    assert cli("run", suite).code == 0


def test_a_full_disk_leaves_no_half_file(cli: Cli, suite: Path) -> None:
    key = sorted(suite.glob("bricks/*"))[0].stem

    for arguments in (
        ["brick", "export", key, "--suite", "suite", "-o", "brick.onnx"],
        ["models", "export", "squeezenet", "-o", "zoo"],
        ["generate", "branches.onnx", "-o", "again", "--plot", "share.png"],
    ):
        done = _limited(64 if arguments[0] != "generate" else 4096, *arguments)
        assert done.returncode == 1, done.stderr
        assert "too large" in done.stderr
        assert "Traceback" not in done.stderr
    left = {str(path) for path in Path().rglob("*") if path.is_file() and path.parts[0] not in {"suite", "again"}}
    assert left <= {"branches.onnx"}

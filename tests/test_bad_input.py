"""Bad input on the command line: one clear line, the documented exit code, and nothing lost."""

from __future__ import annotations

import os
import resource
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


def not_onnx(path: Path) -> None:
    path.write_text("this is a text, and a long one at that\n" * 50)


def future_opset(path: Path) -> None:
    _dense(path, opset=999)


def traversal(path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64, 64], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret.bin")
    model = _dense(path)
    model.graph.initializer.append(tensor)
    onnx.save(model, path)


MODELS = [(not_onnx, "not ONNX"), (future_opset, "opset"), (traversal, "secret.bin")]
"""Of files that cannot be read, of what is not known, and of what may not be read: more in ``tests/models``."""


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


@pytest.mark.parametrize(
    "command",
    ["generate {} -o suite", "measure {} --visits 4", "estimate {}", "compare {} --by combination", "advise {}",
     "kernels {}", "analyze {}", "history {}", "report {} --no-measure"],
)  # fmt: skip
def test_one_broken_model_does_not_stop_the_others(cli: Cli, branches: Path, command: str) -> None:
    not_onnx(Path("broken.onnx"))
    _database(Path("dlbricks.db"))

    done = cli(*command.format("broken.onnx branches.onnx").split(), "--json")

    broken, *whole = done.json["results"]
    assert done.code == 3
    assert "broken.onnx" in broken["error"]
    assert [row["name"] for row in whole] == ["branches"]
    assert whole[0]["error"] is None


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
    assert "Frobnicate" in row["unfused"]
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


def test_a_dimension_that_no_model_has_is_wrong_usage(cli: Cli, here: Path) -> None:
    _dense(here / "good.onnx", shape=["batch", 8])
    _database(here / "dlbricks.db")

    for command in ("generate good.onnx -o suite", "estimate good.onnx", "measure good.onnx"):
        done = cli(*command.split(), "--dim", "nosuch=3")

        assert done.code == 2
        assert "nosuch" in done.error
    assert not Path("suite").exists()


# suites -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def suite(cli: Cli, branches: Path) -> Path:
    assert cli("generate", branches, "-o", "suite").code == 0
    return Path("suite")


@pytest.mark.parametrize(
    ("manifest", "message"), [(None, "is not a suite"), ("{", "is not JSON"), ('{"schema": 99}', "newer dlbricks")]
)
def test_a_bad_suite_is_one_line_and_nothing_is_measured(
    cli: Cli, suite: Path, manifest: str | None, message: str
) -> None:
    (suite / "manifest.json").unlink()
    if manifest is not None:
        (suite / "manifest.json").write_text(manifest)

    done = cli("run", suite)

    assert done.code == 1
    assert message in done.error
    assert done.out == ""


def test_a_bad_brick_is_one_line_and_the_others_are_measured(cli: Cli, suite: Path) -> None:
    path = sorted((suite / "bricks").iterdir())[0]
    path.write_bytes(path.read_bytes() + b"\0")

    done = cli("run", suite)
    counts = cli("run", suite, "--json").json

    assert done.code == 3
    (row,) = counts["results"]
    assert "is not the file that the suite's manifest names" in row["reason"]
    assert (counts["failed"], counts["remaining"]) == (1, 0)
    assert counts["reused"] == counts["bricks"] - 1


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


def newer_database(path: Path) -> None:
    _database(path)
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        (table,) = [name for name in tables if "revision" in name or "version" in name]
        (column, *_) = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"UPDATE {table} SET {column} = '9999'")
    connection.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [(foreign_database, "bad.db"), (newer_database, "newer")],
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
    _database(Path("dlbricks.db"))

    for most, *arguments in (
        (64, "brick", "export", key, "--suite", "suite", "-o", "brick.onnx"),
        (33_000, "estimate", "branches.onnx", "--plot", "layers.png"),  # enough for SQLite's shared memory
    ):
        done = _limited(most, *arguments)
        assert done.returncode == 1, done.stderr
        assert "too large" in done.stderr
        assert "Traceback" not in done.stderr
    left = {str(path) for path in Path().rglob("*") if path.is_file() and path.parts[0] != "suite"}
    assert left <= {"branches.onnx", "dlbricks.db"}

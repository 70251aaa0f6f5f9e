"""What every test relies on, and the command line as tests call it."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlbricks
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from servers import server, url

__all__ = ["server", "url"]

# Tests assert no latency, so each process of a parallel run has a lock of its own, in a temporary
# folder of its own: none waits for another. Processes that one test starts still exclude each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    _OWN = tempfile.TemporaryDirectory(prefix="dlbricks-tests-", ignore_cleanup_errors=True)  # until the process ends
    Path(_OWN.name).chmod(0o755)  # as the usual one, for tests that become another user
    os.environ["TMPDIR"] = os.environ["DLBRICKS_LOCK_DIR"] = tempfile.tempdir = _OWN.name
os.environ.setdefault("DLBRICKS_LOCK_WAIT", "300")
# A test that forgets --db must not write into the user's database.
os.environ.pop("DLBRICKS_DB", None)
os.environ.pop("DLBRICKS_NODE", None)

BRANCHES = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4,16,16] x) => (float[1,4,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, w)
    d = Sigmoid(b)
    e = Add(c, d)
    y = Relu(e)
}
"""
"""Six layers, four of them unique (Conv and Relu twice), two branches."""

LRN = (
    '<ir_version: 8, opset_import: ["": 17]> model (float[1,64,28,28] x) => (float[1,64,28,28] y)'
    "{a = LRN<size=5, alpha=0.1, beta=0.75, bias=1.0>(x) b = Relu(a) y = Conv(b, w)}"
)
"""Nine tenths of it are a kernel that a power makes slow."""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error; anything else on stderr fails the test."""
        (line,) = [line for line in self.err.splitlines() if not line.startswith(("decomposing", "drawn"))]
        assert line.startswith("dlbricks: ")
        return line.removeprefix("dlbricks: ")


Cli = Callable[..., Done]


@pytest.hookimpl(trylast=True)  # when nothing is left to be torn down
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Garbage collection is off while something is timed; a test that leaves it off is named, and not a later one."""
    if not gc.isenabled():
        gc.enable()
        pytest.fail(f"{item.nodeid} left garbage collection off")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder without the answers of earlier runs; environments and exports, which take minutes, are shared."""
    from dlbricks.models.cache import cache_folder

    usual, own = cache_folder().absolute(), tmp_path_factory.mktemp("cache")
    for name in ("backends", "environments", "zoo"):
        (usual / name).mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(usual / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLBRICKS_CACHE", str(own))
        yield


@pytest.fixture(scope="session", autouse=True)
def brief_visits() -> Iterator[dict[str, int]]:
    """Visits of this process take 1 ms, and 24 fill any budget: tests assert no latency, and hundreds of them measure.

    Gives the values that users have, by name.
    """
    from dlbricks.generator.measurement import pace

    brief = {"LOOP_NS": 1_000_000, "_MOST_VISITS": 24}
    usual = {name: getattr(pace, name) for name in brief}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in brief.items():
            patch.setattr(pace, name, value)
        yield usual


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call a command in this process, through the entry point that the shell uses."""
    from dlbricks.cli import main

    # Signals and temporary files of this process are pytest's.
    monkeypatch.setattr(sys.modules["dlbricks.cli.commands"], "prepare", lambda: None)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["dlbricks", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def write_branches() -> Callable[[Path], Path]:
    """Write the model ``BRANCHES`` to a file."""

    return lambda path: _write(BRANCHES, (4, 4, 3, 3), path)


@pytest.fixture(scope="session")
def write_lrn() -> Callable[[Path], Path]:
    """Write the model ``LRN`` to a file."""
    return lambda path: _write(LRN, (64, 64, 1, 1), path)


def _write(text: str, filters: tuple[int, ...], path: Path) -> Path:
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).normal(size=filters).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def branches(here: Path, write_branches: Callable[[Path], Path]) -> Path:
    """The file ``branches.onnx`` in an empty working folder."""
    return write_branches(here / "branches.onnx")


START = "import runpy; runpy.run_module('dlbricks.generator.worker', run_name='__main__')"


@pytest.fixture
def pythons(tmp_path: Path) -> Callable[..., Path]:
    """Makes an interpreter: this one, with the package of this test, that runs some code before the worker."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/dlbricks").symlink_to(Path(dlbricks.__file__).resolve().parent, target_is_directory=True)

    def make(name: str, code: str = "") -> Path:
        (tmp_path / f"{name}.py").write_text(f"{code}\n{START}\n")
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -P {tmp_path}/{name}.py\n")
        path.chmod(0o755)
        return path

    return make

"""A cell with a lock file is measured in an environment of that, made by pip itself on the node."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import psutil
import pytest
from dlbricks.db import Store
from dlbricks.generator.fleet.planning import plan

from .conftest import until


def wheel(folder: Path) -> str:
    """A package that leads to those of this environment; its lines of a lock file."""
    name = "neighbours-1.0-py3-none-any.whl"
    information = "neighbours-1.0.dist-info"
    paths = [path for path in sys.path if path.endswith("site-packages")]
    parts = {
        "neighbours.pth": "".join(f"{path}\n" for path in paths),
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: neighbours\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    parts[f"{information}/RECORD"] = "".join(f"{part},,\n" for part in [*parts, f"{information}/RECORD"])
    with zipfile.ZipFile(folder / name, "w") as archive:
        for part, text in parts.items():
            archive.writestr(part, text)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return (
        '[[packages]]\nname = "neighbours"\nversion = "1.0"\n'
        f'[[packages.wheels]]\npath = "{name}"\nhashes = {{sha256 = "{digest}"}}\n'
    )


@pytest.mark.slow
def test_a_cell_runs_in_the_environment_of_its_lock(campaign, url, workers, rows, tmp_path):
    (tmp_path / "pylock.toml").write_text('lock-version = "1.0"\ncreated-by = "test"\n' + wheel(tmp_path))
    (tmp_path / "empty.toml").write_text('lock-version = "1.0"\ncreated-by = "test"\npackages = []\n')
    locked = '[[stack]]\nname = "{0}"\nbackend = "onnxruntime"\nlock = "{0}.toml"\n'
    plan(campaign(more=locked.format("pylock") + locked.format("empty"), nodes=["alpha"]), url)
    environment = {
        "DLBRICKS_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path),
    }  # fmt: skip

    worker = workers.start("alpha", "--drain", **environment)
    interpreters = set()

    def ended() -> bool:
        for child in psutil.Process(worker.pid).children() if worker.poll() is None else ():
            interpreters.update(child.cmdline()[:1])
        return worker.poll() is not None

    until(ended)
    _, err = worker.communicate()

    assert worker.returncode == 3, err
    _, full, empty = rows("SELECT complete, reason, counts FROM outcome ORDER BY job")
    assert (full["complete"], full["counts"]["measured"]) == (True, 10)
    assert "No module named" in empty["reason"]  # nothing of the worker's environment reaches into it
    assert any(path.startswith(str(tmp_path / "cache" / "environments")) for path in interpreters)
    with Store.open(url, read_only=True) as store:
        assert {stack.backend for stack in store.stacks().values()} == {"sleeping", "onnxruntime"}

"""The software as recorded."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import dlbricks
import pytest
from dlbricks.generator.machine.software import IMAGE_VARIABLE, LOCK, software_state, wheel_contents

ROOT = Path(dlbricks.__file__).resolve().parent


@pytest.fixture
def state():
    """What is found anew, whatever was found before."""
    return software_state.__wrapped__


def test_it_can_be_stored_and_names_nobody_but_the_image(state, monkeypatch):
    monkeypatch.setenv("SECRET_OF_MINE", "hunter2")
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    found = state(("onnxruntime",))

    assert json.loads(json.dumps(found)) == found
    assert found["python"] == platform.python_version()
    words = json.dumps(found)
    secrets = ["hunter2", socket.gethostname(), str(Path.home()), sys.prefix, str(ROOT)]
    assert not [secret for secret in secrets if len(secret) > 2 and secret in words]
    assert found["image"] is None
    monkeypatch.setenv(IMAGE_VARIABLE, "sha256:abc")
    assert state(())["image"] == "sha256:abc"


def test_packages_are_those_that_dlbricks_and_the_runtime_need(state):
    packages = state(("onnxruntime",))["packages"]

    assert packages["onnxruntime"]["version"] == metadata.version("onnxruntime")
    assert {"numpy", "sqlalchemy", "typing-extensions"} <= set(packages)  # the last through sqlalchemy
    assert not {"pytest", "pip", "dlbricks"} & set(packages)
    assert all(len(one["contents"]) == 64 for one in packages.values())
    tests = state(("pytest>=1",))["packages"]  # extras bring what they need
    assert {"pygments", "iniconfig"} <= tests.keys()
    assert "hypothesis" not in tests  # of an extra that nobody asked for


def test_requirements_that_cannot_be_read_are_unknown(state, tmp_path, monkeypatch):
    """Of a package that was installed long ago, say; what else it requires is found all the same."""
    for name, required in {"odd": ["numpy (>=1.0.*", "beside ; python_version ?? '3'", "other"], "other": []}.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        said = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (folder / "METADATA").write_text(said + "".join(f"Requires-Dist: {one}\n" for one in required))
    monkeypatch.syspath_prepend(tmp_path)

    packages = state(("odd",))["packages"]

    assert packages["odd"] == {"version": "1.0", "contents": None, "requires": "unknown"}
    assert packages["other"] == {"version": "1.0", "contents": None}
    assert not [name for name, one in packages.items() if "requires" in one and name != "odd"]
    assert "onnxruntime" in state(("no package at all", "onnxruntime"))["packages"]


def test_the_lock_of_an_environment_knows_its_wheels(state, tmp_path, monkeypatch):
    version = metadata.version("numpy")
    lock = f'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "numpy"\nversion = "{version}"\n'
    lock += f'[[packages.wheels]]\npath = "numpy-{version}-py3-none-any.whl"\n'
    (tmp_path / LOCK).write_text(f'{lock}hashes = {{sha256 = "{"1" * 64}"}}\n')
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    known = state(())["packages"]["numpy"]
    (tmp_path / LOCK).write_text(f'{lock.replace(version, "0.1")}hashes = {{sha256 = "{"1" * 64}"}}\n')
    other = state(())["packages"]["numpy"]

    assert (known["wheel"], known["sha256"]) == (f"numpy-{version}-py3-none-any.whl", "1" * 64)
    assert other.get("sha256") != "1" * 64  # what is installed is another version
    for text in ("this is no TOML", "packages = 1"):
        (tmp_path / LOCK).write_text(text)
        assert state(())["packages"]["numpy"]["version"] == version


def test_the_sources_are_those_that_run(state):
    own = state(())["dlbricks"]

    assert own["version"] == dlbricks.__version__
    assert own["sources"] == state(())["dlbricks"]["sources"]
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        head = subprocess.run([git, "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        assert own["commit"] == (head.stdout.strip() or None)


def test_a_wheel_has_the_contents_of_what_is_installed_from_it():
    wheel = (
        "a/b.py,sha256=1,2\na-1.data/purelib/c.py,sha256=2,2\na-1.data/scripts/run,sha256=3,2\na-1.dist-info/RECORD,,\n"
    )
    installed = (
        "../../../bin/run,sha256=4,9\na-1.dist-info/INSTALLER,sha256=5,4\na-1.dist-info/RECORD,,\n"
        "a/__pycache__/b.cpython-311.pyc,,\na/b.py,sha256=1,2\nc.py,sha256=2,2\n"
    )

    assert wheel_contents(wheel) == wheel_contents(installed)
    assert wheel_contents(wheel) != wheel_contents(installed.replace("sha256=1", "sha256=9"))
    assert wheel_contents(wheel) != wheel_contents(installed + "more.py,sha256=1,2\n")

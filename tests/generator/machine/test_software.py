"""The software as recorded."""

from __future__ import annotations

import hashlib
import json
import os
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


def test_it_can_be_stored_and_names_nobody(state):
    found = state(("onnxruntime",))

    assert json.loads(json.dumps(found)) == found
    assert found["python"] == platform.python_version()
    words = json.dumps(found)
    secrets = [socket.gethostname(), str(Path.home()), sys.prefix, str(ROOT)]
    assert not [secret for secret in secrets if len(secret) > 2 and secret in words]


def test_packages_are_those_that_dlbricks_and_the_runtime_need(state):
    packages = state(("onnxruntime",))["packages"]

    assert packages["onnxruntime"]["version"] == metadata.version("onnxruntime")
    assert {"numpy", "sqlalchemy", "mako"} <= set(packages)  # the last through alembic
    assert not {"pytest", "pip", "dlbricks"} & set(packages)
    assert all(len(one["contents"]) == 64 for one in packages.values())


def test_extras_bring_what_they_need(state):
    pytest.importorskip("pytest")

    assert "pygments" in state(("pytest",))["packages"]
    assert "iniconfig" in state(("pytest>=1",))["packages"]
    assert "hypothesis" not in state(("pytest",))["packages"]  # of an extra that nobody asked for


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


def test_the_image_is_what_its_owner_says(state, monkeypatch):
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    assert state(())["image"] is None

    monkeypatch.setenv(IMAGE_VARIABLE, "sha256:abc")

    assert state(())["image"] == "sha256:abc"


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


def test_no_variable_of_the_user_is_recorded(state, monkeypatch):
    monkeypatch.setenv("SECRET_OF_MINE", "hunter2")

    assert "hunter2" not in json.dumps(state(()))
    assert os.environ["SECRET_OF_MINE"] == "hunter2"


def test_each_file_counts_by_its_path_however_it_is_spelt():
    """As pathlib reads it, without which it takes a third of the time."""
    kept = {"a/b.py": ["a/b.py", "./a/b.py", "a//b.py", "a/./b.py", "a/b.py/", "x.data/purelib/a/b.py"]}
    kept |= {name: [name] for name in ("a/../b", ".pyc", "a/.pyc", ".hidden", "..a", "RECORD", "x.dist-info/METADATA")}
    dropped = ["", ".", "./", "..", "../a", "/a", "a.pyc", "a/b.c.pyc", "x.dist-info/RECORD", "y/x.dist-info//RECORD"]
    dropped += ["x.data/scripts/a", "x.data"]

    for name, spelt in kept.items():
        expected = hashlib.sha256(f"{name},sha256=1".encode()).hexdigest()
        assert {wheel_contents(f"{one},sha256=1,9") for one in spelt} == {expected}
    nothing = hashlib.sha256(b"").hexdigest()
    assert {one: wheel_contents(f"{one},sha256=1,9") for one in dropped} == dict.fromkeys(dropped, nothing)

"""Environments of runtimes: installed for real once (see ``mxnet``), and what may go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import dlbricks
import pytest
from dlbricks.db.values import DEFAULT_RUNTIME
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends import environments
from dlbricks.generator.backends.environments import Environment, install_backend, version_of
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement.trial import place_of
from dlbricks.generator.worker.client import Workers, start_worker

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "backends"


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """Gives the backend ``mxnet`` other pins: none, which installs in seconds, or such as cannot be installed."""

    def pin(*lines: str, python: str = OWN) -> Environment:
        pins = tmp_path / "pins.txt"
        pins.write_text("".join(f"{line}\n" for line in lines))
        environment = Environment("mxnet", pins, python)
        monkeypatch.setattr(MxnetBackend, "environment", environment)
        return environment

    return pin


def test_the_main_environment_stays_as_it_was(mxnet):
    assert mxnet.untouched


def test_an_environment_runs_the_very_code_of_this_one(mxnet):
    code = "import dlbricks, os, sys; print(os.path.realpath(dlbricks.__file__)); print(*sys.path)"

    done = subprocess.run(
        [*MxnetBackend().command()[:3], "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )

    where, paths = done.stdout.splitlines()
    assert Path(where) == Path(dlbricks.__file__).resolve()
    assert sysconfig.get_paths()["purelib"] not in paths.split()


def test_an_environment_that_is_there_is_left_alone(mxnet):
    before = mxnet.folder.stat().st_mtime_ns

    done = install_backend("mxnet")

    assert not done.fresh
    assert done.folder == mxnet.folder
    assert done.versions == {"mxnet": "1.9.1"}
    assert mxnet.folder.stat().st_mtime_ns == before
    assert MxnetBackend().probe().ok


def test_pins_hold_all_that_is_installed(mxnet):
    listed = subprocess.run(
        [str(MxnetBackend.environment.interpreter), "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert listed.returncode == 0, listed.stdout


def test_the_command_reports_that_it_is_there(mxnet, cli):
    (row,) = cli("backends", "install", "mxnet", "--json").json["results"]
    (listed,) = [row for row in cli("backends", "list", "--json").json["results"] if row["name"] == "mxnet"]

    assert row == {"name": "mxnet", "installed": False, "folder": str(mxnet.folder), "versions": {"mxnet": "1.9.1"}}
    assert listed["available"]
    assert listed["versions"] == {"mxnet": "1.9.1"}


@pytest.mark.usefixtures("here")
def test_a_backend_that_is_not_installed_says_how_to(cache, cli):
    (row,) = [row for row in cli("backends", "list", "--json").json["results"] if row["name"] == "mxnet"]
    done = cli("measure", "squeezenet", "--backend", "mxnet", "--cache", "hot")

    assert not row["available"]
    assert row["reason"] == "not installed; dlbricks backends install mxnet"
    assert done.code == 1
    assert "dlbricks backends install mxnet" in done.error


@pytest.mark.slow
def test_a_failed_installation_leaves_nothing(cache, pinned, cli):
    pinned("nosuchpackage-of-dlbricks==0.0.1")

    done = cli("backends", "install", "mxnet")

    assert done.code == 1
    assert "its packages cannot be installed" in done.error
    assert "nosuchpackage-of-dlbricks" in done.error
    assert "pip config list" in done.error
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.slow
def test_an_environment_is_replaced_when_asked(cache, pinned, monkeypatch, tmp_path):
    (tmp_path / "constraints.txt").write_text("this is no constraint at all !!\n")
    for name in ("PIP_CONSTRAINT", "PIP_REQUIREMENT"):  # settings of the caller's that must not reach it
        monkeypatch.setenv(name, str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    environment = pinned()
    environment.folder.mkdir(parents=True)  # of no use: it has no Python
    (cache / f".{environment.folder.name}-killed").mkdir()  # of an installation that was killed
    assert not environment.installed

    first = install_backend("mxnet")
    (environment.folder / "old").touch()
    again = install_backend("mxnet", again=True)

    assert first.fresh
    assert again.fresh
    assert environment.installed
    assert not (environment.folder / "old").exists()
    assert sorted(path.name for path in cache.iterdir()) == [environment.folder.name, f"{environment.folder.name}.lock"]


def test_what_was_there_survives_a_failed_replacement(cache, pinned, tmp_path):
    environment = pinned()
    environment.interpreter.parent.mkdir(parents=True)
    environment.interpreter.symlink_to(sys.executable)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *version_info*) echo {OWN};; *) echo no room >&2; exit 1;; esac\n')
    python.chmod(0o755)

    with pytest.raises(BackendUnavailable, match="an environment cannot be made: no room"):
        install_backend("mxnet", again=True, python=str(python))

    assert environment.installed
    assert sorted(path.name for path in cache.iterdir()) == [environment.folder.name, f"{environment.folder.name}.lock"]


def test_a_python_without_wheels_is_reported(cache, pinned, monkeypatch):
    pinned(python="2.7")
    monkeypatch.setenv("PATH", str(cache))

    with pytest.raises(BackendUnavailable, match=r"needs Python 2\.7.*no python2\.7 here; .*--python"):
        install_backend("mxnet")
    with pytest.raises(BackendUnavailable, match=rf"is Python {OWN}; "):
        install_backend("mxnet", python=sys.executable)
    with pytest.raises(BackendUnavailable, match="is no Python that runs"):
        install_backend("mxnet", python=os.devnull)


def test_its_tests_are_skipped_where_there_is_no_python_for_it(pinned, monkeypatch, install_runtime, tmp_path):
    pinned(python="2.7")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(pytest.skip.Exception, match=r"needs Python 2\.7.*no python2\.7 here"):
        install_runtime(tmp_path / "cache")


@pytest.mark.slow
def test_its_tests_fail_where_its_installation_does(pinned, install_runtime, tmp_path):
    pinned("nosuchpackage-of-dlbricks==0.0.1")

    with pytest.raises(BackendUnavailable, match="its packages cannot be installed"):
        install_runtime(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "file"))

    with pytest.raises(BackendUnavailable, match="DLBRICKS_CACHE"):
        install_backend("mxnet")


def test_a_backend_without_an_environment_is_refused():
    with pytest.raises(UsageError, match="onnxruntime runs in the environment of dlbricks itself"):
        install_backend("onnxruntime")
    with pytest.raises(UsageError, match="no backend 'nosuch'"):
        install_backend("nosuch")


def test_every_dlbricks_has_an_environment_of_its_own(pinned, monkeypatch, tmp_path):
    environment = pinned("a==1")
    first = environment.folder
    environment.pins.write_text("a==2\n")
    second = environment.folder
    monkeypatch.setattr(environments, "_PACKAGE", tmp_path)

    assert len({first, second, environment.folder}) == 3


def test_what_is_no_environment_is_not_replaced(pinned, cache):
    place = pinned().folder
    place.mkdir(parents=True)
    (place / "mine").write_text("mine")

    with pytest.raises(BackendUnavailable, match="no environment of Python"):
        install_backend("mxnet", again=True)

    assert (place / "mine").read_text() == "mine"


@pytest.mark.slow
def test_what_was_there_survives_a_rename_that_fails(pinned, cache, monkeypatch):
    environment = pinned()
    place = environment.folder
    environment.interpreter.parent.mkdir(parents=True)
    environment.interpreter.symlink_to(sys.executable)
    (place / "old").touch()
    rename = Path.rename

    def fail(path, target):
        if path.name == "new":
            raise OSError(5, "no more")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(BackendUnavailable, match="cannot be written"):
        install_backend("mxnet", again=True)

    assert (place / "old").exists()
    assert sorted(path.name for path in cache.iterdir()) == [place.name, f"{place.name}.lock"]


@pytest.mark.slow
def test_a_version_that_cannot_be_installed_leaves_nothing(cache):
    with pytest.raises(BackendUnavailable, match=r"onnxruntime==0\.0\.1: it cannot be installed"):
        version_of("onnxruntime==0.0.1")

    assert [path.suffix for path in (cache.parent / "versions").iterdir()] == [".lock"]


def test_a_package_for_gpus_is_not_installed_without_one(cache, monkeypatch):
    monkeypatch.setattr(environments, "probe_system", lambda: replace(probe_system(), gpus=()))

    with pytest.raises(BackendUnavailable, match=r"onnxruntime-gpu==1\.23\.2 needs a GPU"):
        version_of("onnxruntime-gpu==1.23.2")

    assert not (cache.parent / "versions").exists()


@pytest.mark.slow
def test_a_version_is_installed_with_what_the_worker_needs(cache):
    running = metadata.version("onnxruntime")

    version = version_of(running)

    place = place_of(DEFAULT_RUNTIME, python=version.python)
    with Workers(start_worker) as workers:
        stack = workers.at(place).greeting.stack
    assert dict(stack.versions)["onnxruntime"] == running
    assert version.name == f"onnxruntime=={running}"
    assert version_of(version.name).python == version.python

"""Environments made from lock files, by pip itself, from wheels that lie beside the lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dlbricks
import pytest
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends.environments import locked_environment
from dlbricks.generator.machine.software import LOCK, wheel_contents
from wheels import record_of, sha256, write_wheel


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Where they are made: an empty folder. No index is asked."""
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache" / "environments"


@pytest.fixture
def wheel(tmp_path):
    """Makes a wheel of one module that says its version, in the folder of the lock, and gives its lines of the lock."""

    def make(name: str, version: str = "1.0", *, digest: str = "") -> str:
        path = write_wheel(tmp_path, name, version)
        found = digest or sha256(path)
        return (
            f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
            f'[[packages.wheels]]\npath = "{path.name}"\nhashes = {{sha256 = "{found}"}}\n'
        )

    return make


@pytest.fixture
def lock(tmp_path):
    """Writes a lock file of some packages."""

    def write(*packages: str, head: str = "") -> Path:
        path = tmp_path / "pylock.toml"
        path.write_text('lock-version = "1.0"\ncreated-by = "test"\n' + head + ("".join(packages) or "packages = []\n"))
        return path

    return write


def said(python: Path, code: str) -> str:
    return subprocess.run(
        [str(python), "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout.strip()


@pytest.mark.slow
def test_an_environment_is_made_once_and_holds_this_code(environments, wheel, lock):
    path = lock(wheel("apart"), '[[packages]]\nname = "dlbricks"\n[packages.directory]\npath = "."\n')

    python = locked_environment(path)
    made = python.stat(follow_symlinks=False).st_mtime_ns
    again = locked_environment(path)

    assert said(python, "import apart; print(apart.version)") == "1.0"
    where = said(python, "import os, dlbricks; print(os.path.realpath(dlbricks.__file__))")
    assert Path(where) == Path(dlbricks.__file__).resolve()
    assert (python.parents[1] / LOCK).read_bytes() == path.read_bytes()
    installed = said(python, "from importlib import metadata as m; print(m.distribution('apart').read_text('RECORD'))")
    assert "INSTALLER" in installed
    assert wheel_contents(installed) == wheel_contents(record_of(path.parent / "apart-1.0-py3-none-any.whl"))
    assert again == python
    assert python.stat(follow_symlinks=False).st_mtime_ns == made
    assert sorted(one.name for one in environments.iterdir()) == [
        python.parents[1].name,
        f"{python.parents[1].name}.lock",
    ]


@pytest.mark.slow
def test_a_lock_that_has_dlbricks_brings_its_own(environments, wheel, lock):
    python = locked_environment(lock(wheel("dlbricks", "7.0")))

    assert said(python, "import dlbricks; print(dlbricks.version)") == "7.0"


@pytest.mark.slow
def test_another_hash_is_refused_and_leaves_nothing(environments, wheel, lock):
    with pytest.raises(BackendUnavailable, match=r"another hash than the lock's: apart==1\.0"):
        locked_environment(lock(wheel("apart", digest="0" * 64)))

    assert [one.suffix for one in environments.iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_package_that_is_not_to_be_had_is_named(environments, wheel, lock, tmp_path):
    path = lock(wheel("apart"))
    (tmp_path / "apart-1.0-py3-none-any.whl").unlink()

    with pytest.raises(BackendUnavailable, match=r"apart==1\.0.*pip config list"):
        locked_environment(path)

    assert [one.suffix for one in environments.iterdir()] == [".lock"]


@pytest.mark.usefixtures("environments")
def test_what_is_no_lock_file_is_refused(lock, wheel, tmp_path):
    with pytest.raises(UsageError, match=r"no lock file .*nosuch.toml: No such file.*pip lock"):
        locked_environment(tmp_path / "nosuch.toml")
    (tmp_path / "text.toml").write_text("this is no TOML\n")
    with pytest.raises(UsageError, match="is no lock file"):
        locked_environment(tmp_path / "text.toml")
    with pytest.raises(UsageError, match=r"is no lock file: .*packages"):
        locked_environment(lock("packages = 1\n"))
    with pytest.raises(UsageError, match="is no lock file"):
        locked_environment(lock("[[packages]]\nversion = '1.0'\n"))
    with pytest.raises(UsageError, match="apart has a hash that is none"):
        locked_environment(lock(wheel("apart", digest=r"0\n--index-url=x")))


@pytest.mark.usefixtures("environments")
def test_a_lock_for_others_is_refused(lock):
    old = 'requires-python = "<3"\n'
    mac = (
        '[[packages]]\nname = "a"\nversion = "1"\n[[packages.wheels]]\npath = "a-1-cp27-cp27m-macosx_10_9_x86_64.whl"\n'
    )
    mac += f'hashes = {{sha256 = "{"0" * 64}"}}\n'
    sources = '[[packages]]\nname = "a"\nversion = "1"\n[packages.sdist]\npath = "a-1.tar.gz"\n'
    sources += f'hashes = {{sha256 = "{"0" * 64}"}}\n'

    with pytest.raises(BackendUnavailable, match="Python version requirement"):
        locked_environment(lock(head=old))
    with pytest.raises(BackendUnavailable, match="No wheel found"):
        locked_environment(lock(mac))
    with pytest.raises(BackendUnavailable, match="of a it has no wheel"):
        locked_environment(lock(sources))

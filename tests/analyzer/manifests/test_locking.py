"""Lock files of what was measured, and the hashes that they are made of."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
from dlbricks.analyzer.manifests.manifest import Provenance, lock_of, with_hashes
from dlbricks.generator.machine.software import wheel_contents
from packaging.pylock import Pylock
from wheels import record_of, sha256, write_wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in the place of every index, with two packages."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return {name: write_wheel(tmp_path, name) for name in ("apart", "beside")}


def provenance(packages):
    return Provenance({}, {"python": "3.11.7"}, packages, {})


def test_a_lock_is_one_of_pep_751():
    packages = {
        "b": {"version": "2.0", "contents": "x", "wheel": "b-2.0-py3-none-any.whl", "sha256": "2" * 64},
        "a": {"version": "1.0", "contents": "x", "wheel": "a-1.0-py3-none-any.whl", "sha256": "1" * 64},
    }

    text = lock_of(provenance(packages))

    assert text is not None
    found = Pylock.from_dict(tomllib.loads(text.decode()))
    assert [(one.name, str(one.version)) for one in found.packages] == [("a", "1.0"), ("b", "2.0")]
    assert found.packages[0].wheels[0].hashes == {"sha256": "1" * 64}
    assert str(found.requires_python) == "==3.11.*"


def test_a_hash_that_is_missing_is_named_and_never_invented():
    packages = {"a": {"version": "1.0", "contents": "x"}, "b": {"version": "1", "wheel": "b.whl", "sha256": "1" * 64}}

    assert provenance(packages).without_hash == ["a"]
    assert lock_of(provenance(packages)) is None
    assert lock_of(provenance({})) is None


def test_pip_finds_the_wheels_that_are_installed(index):
    packages = {name: {"version": "1.0", "contents": wheel_contents(record_of(path))} for name, path in index.items()}

    found = with_hashes(packages)

    assert {name: one["sha256"] for name, one in found.items()} == {name: sha256(p) for name, p in index.items()}
    assert found["apart"]["wheel"] == "apart-1.0-py3-none-any.whl"
    assert "sha256" not in packages["apart"]


def test_another_wheel_of_the_same_version_is_not_it(index, tmp_path):
    contents = wheel_contents(record_of(index["apart"]))
    write_wheel(tmp_path, "apart", text="changed = True\n")

    assert with_hashes({"apart": {"version": "1.0", "contents": contents}})["apart"].get("sha256") is None


def test_pip_is_given_names_and_versions_alone(index, tmp_path, monkeypatch):
    """A stored name that is an address or an option of pip reaches it neither way, nor does such a version."""
    asked = []
    once = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **given: asked.append(command) or once(command, **given))
    good = {"version": "1.0", "contents": wheel_contents(record_of(index["apart"]))}
    evil = {
        f"beside @ {index['beside'].as_uri()}#": good,
        str(index["beside"]): good,
        "--index-url=https://example.invalid/simple#": good,
        "-r": good,
        "": good,
        "x ; python_version > '3' #": good,
        "Beside": good,
        "beside": good | {"version": f"1.0 @ {index['beside'].as_uri()}"},
        "other": good | {"version": "1.0 --pre"},
        "none": good | {"version": None},
        "number": good | {"version": 1},
    }

    found = with_hashes(evil | {"apart": good})

    (command,) = asked
    assert command[command.index("--") + 1 :] == ["apart==1.0"]
    assert found["apart"]["sha256"] == sha256(index["apart"])
    assert {name: one for name, one in found.items() if name != "apart"} == evil


def test_what_is_known_is_not_asked_for():
    known = {"a": {"version": "1.0", "contents": "x", "wheel": "a.whl", "sha256": "1" * 64}}

    assert with_hashes(known) == known


def test_what_is_not_to_be_had_stops_no_other(index):
    contents = wheel_contents(record_of(index["apart"]))
    packages = {"apart": {"version": "1.0", "contents": contents}, "nosuch": {"version": "9", "contents": "x"}}

    found = with_hashes(packages)

    assert found["apart"]["sha256"] == sha256(index["apart"])
    assert found["nosuch"] == packages["nosuch"]

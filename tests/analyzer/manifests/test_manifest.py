"""Manifests: what they say, what they keep to themselves, and which files are none."""

from __future__ import annotations

import json
import socket
import zipfile
from pathlib import Path

import pytest
from dlbricks.analyzer.manifests.manifest import DESCRIPTION, MEASUREMENTS, SUITE, manifest, unpack
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, Subject, export, merge
from dlbricks.errors import AmbiguousQuery, UsageError
from dlbricks.generator.machine.system import machine_state, probe_system
from dlbricks.generator.measurement.run import run

from .conftest import FEW


@pytest.fixture
def folder(stated, tmp_path):
    """Where the manifest is unpacked."""
    unpack(stated.file, tmp_path / "unpacked")
    return tmp_path / "unpacked"


def replaced(file: Path, place: Path, **contents: bytes) -> Path:
    """Write an archive with other contents of some members, by their names without an ending."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(place, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, contents.get(Path(name).stem, source.read(name)) if "/" not in name else b"")
    return place


def test_it_contains_the_measurements_of_the_run_and_the_suite(stated, folder):
    with Store.open(stated.database, read_only=True) as store, Store.open(folder / MEASUREMENTS) as copy:
        stored = store.measurements(subject=Subject.BRICK, variant=None)
        assert copy.measurements(subject=Subject.BRICK, variant=None) == stored
        assert {one.key for one in stored} == set(stated.suite.keys)
        ids = [one.id for one in stored]
        assert copy.blocks_of(ids) == store.blocks_of(ids)
        assert len(copy.measurements(subject=Subject.REFERENCE)) == 1
        assert copy.runs()[0].after["probes_ns"] == store.runs()[0].after["probes_ns"]

    assert Suite.open(folder / SUITE).hash == stated.suite.hash == stated.manifest.suite
    assert {path.name for path in folder.iterdir()} == {DESCRIPTION, MEASUREMENTS, SUITE}
    assert stated.manifest.complete
    assert stated.manifest.bricks == len(stated.suite.keys)


def test_it_says_what_the_run_was_measured_on_and_with(stated):
    found, state, system = stated.manifest.provenance, machine_state(), probe_system()

    assert stated.manifest.run == stated.run
    assert found.hardware["cpu"] == system.cpu
    for name in ("kernel", "microcode", "governor", "turbo", "smt", "cpu_quota", "virtual"):
        assert found.hardware[name] == state[name]
    assert found.software["versions"]["onnxruntime"] == found.packages["onnxruntime"]["version"]
    assert {"python", "libc", "dlbricks", "options"} <= found.software.keys()
    assert {name: found.settings[name] for name in FEW} == FEW
    assert (found.settings["backend"], found.settings["seed"]) == ("onnxruntime", 0)


def test_it_names_no_model_host_node_campaign_or_path(stated, folder):
    words = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())

    secrets = ["secret-name", "annas-laptop", "hush", str(stated.suite.path), str(Path.home()), socket.gethostname()]
    assert not [secret for secret in secrets if len(secret) > 2 and secret.encode() in words]
    with Store.open(folder / MEASUREMENTS, read_only=True) as store:
        assert store.measurements(subject=Subject.MODEL) == []


def test_a_file_gives_back_what_was_written(stated, tmp_path):
    assert unpack(stated.file, tmp_path) == stated.manifest


def test_what_was_changed_or_is_no_manifest_is_refused(stated, tmp_path):
    with zipfile.ZipFile(stated.file) as archive:
        said = json.loads(archive.read(DESCRIPTION))
    provenance, settings = said["provenance"], said["provenance"]["settings"]
    files = [tmp_path / "nothing.zip", tmp_path / "text.zip"]
    files[1].write_text("{")

    for number, wrong in enumerate([
        {"schema": 9}, {"run": None}, {"suite": 1}, {"missing": None}, {"measurements": 7}, {"lock": []},
        {"lock": "0" * 64}, {"provenance": {}}, {"provenance": provenance | {"hardware": []}},
        {"provenance": provenance | {"packages": {"numpy": "2.0"}}},
        {"provenance": provenance | {"settings": settings | {"visits": "24"}}},
        {"provenance": provenance | {"settings": settings | {"options": {"arena": 1}}}},
    ]):  # fmt: skip
        text = json.dumps(said | wrong).encode()
        files.append(replaced(stated.file, tmp_path / f"{number}.zip", manifest=text))
    for file in files:
        with pytest.raises(UsageError, match="not a manifest of this dlbricks"):
            unpack(file, tmp_path / "unpacked")
    with pytest.raises(UsageError, match=r"was changed: measurements\.db differs"):
        unpack(replaced(stated.file, tmp_path / "changed.zip", measurements=b"SQLite"), tmp_path / "unpacked")
    text = json.dumps(said | {"provenance": provenance | {"settings": settings | {"visits": 0}}}).encode()
    with pytest.raises(UsageError, match="visits cannot be 0"):
        unpack(replaced(stated.file, tmp_path / "visits.zip", manifest=text), tmp_path / "unpacked")


def test_the_run_that_is_meant_is_named_and_alone(stated, tmp_path):
    with Store.open("sqlite://") as store:
        with pytest.raises(UsageError, match="no finished run"):
            manifest(stated.suite, tmp_path / "results.zip", store=store)
        first = run(stated.suite, store=store, **FEW).run
        run(stated.suite, store=store, cache="hot", **FEW)

        with pytest.raises(AmbiguousQuery, match=r"2 runs .* match: .*cache model.*cache hot"):
            manifest(stated.suite, tmp_path / "results.zip", store=store)
        by_cache = manifest(stated.suite, tmp_path / "results.zip", store=store, cache="model")
        by_name = manifest(stated.suite, tmp_path / "results.zip", store=store, run=first[:8])
        with pytest.raises(UsageError, match=r"no finished run .* finished are"):
            manifest(stated.suite, tmp_path / "results.zip", store=store, run="nobody")
        with pytest.raises(UsageError, match="no finished run"):
            manifest(stated.suite, tmp_path / "results.zip", store=store, backend="torch")

    assert by_cache.run == by_name.run == first
    unpack(tmp_path / "results.zip", tmp_path / "unpacked")
    with Store.open(tmp_path / "unpacked" / MEASUREMENTS, read_only=True) as store:
        assert [one.id for one in store.runs()] == [first]
        assert {one.run for one in store.measurements(variant=None, latest=False)} == {first}


def test_a_run_without_its_software_has_no_manifest(stated, tmp_path):
    with Store.open(stated.database, read_only=True) as store:
        export(store, tmp_path / "public.db", measurements_only=True)
    with Store.open(tmp_path / "home.db") as store:
        merge(store, tmp_path / "public.db")
        with pytest.raises(UsageError, match="came without its software"):
            manifest(stated.suite, tmp_path / "results.zip", store=store)


def test_a_file_is_written_whole_or_not_at_all(stated, tmp_path):
    path, link = tmp_path / "results.zip", tmp_path / "link.zip"
    path.write_text("what was there")
    link.symlink_to(path)
    with Store.open(stated.database, read_only=True) as store:
        with pytest.raises(UsageError, match="no finished run"):
            manifest(stated.suite, path, store=store, run="nobody")
        assert path.read_text() == "what was there"

        manifest(stated.suite, link, store=store)
        for place in (tmp_path / "nowhere/results.zip", tmp_path):
            with pytest.raises(UsageError, match=f"{place} is no place for a file"):
                manifest(stated.suite, place, store=store)

    assert link.is_symlink()
    assert unpack(path, tmp_path / "unpacked").run == stated.run
    assert {one.name for one in tmp_path.iterdir()} == {"results.zip", "link.zip", "unpacked"}

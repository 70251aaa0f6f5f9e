"""Manifests measured again, really; and what is said of each difference."""

from __future__ import annotations

import copy
import dataclasses
import sys
from functools import partial
from pathlib import Path

import dlbricks
import pytest
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.manifests import reproduce as module
from dlbricks.analyzer.manifests.manifest import Provenance, unpack
from dlbricks.analyzer.manifests.reproduce import Reproduction, differences, reproduce
from dlbricks.analyzer.report.answers.reproduction import reproduction_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.decomposition.generate import generate
from dlbricks.models import find_models
from wheels import write_wheel

from .conftest import FEW, doctored, scaled

LOCK = b'lock-version = "1.0"\ncreated-by = "test"\npackages = []\n'


def timed(rows):
    """Without bricks so short that on a busy machine nothing is left of them beside what a visit costs."""
    return [row for row in rows if row.ratio is not None]


def leaves(value, name):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}")
    else:
        yield name


def altered(provenance: Provenance, path: str) -> Provenance:
    """The same with one leaf changed."""
    part, *way, last = path.split(".")
    changed = copy.deepcopy(getattr(provenance, part))
    inner = changed
    for key in way:
        inner = inner[key]
    inner[last] = [*inner[last], "more"] if isinstance(inner[last], list) else f"{inner[last]}?"
    return dataclasses.replace(provenance, **{part: changed})


def test_every_altered_field_is_named(stated):
    provenance, unnamed = stated.manifest.provenance, []
    for part in ("hardware", "software", "packages", "settings"):
        for name in leaves(getattr(provenance, part), part):
            found = differences(provenance, altered(provenance, name))
            if [one.field for one in found] != [name] and not name.endswith((".wheel", ".sha256")):
                unnamed.append(name)

    assert not unnamed
    assert differences(provenance, provenance) == ()


def test_a_wheel_is_no_difference_where_its_files_are_the_same(stated):
    packages = copy.deepcopy(stated.manifest.provenance.packages)
    packages["numpy"] |= {"wheel": "numpy.whl", "sha256": "1" * 64}
    other = dataclasses.replace(stated.manifest.provenance, packages=packages)

    assert differences(stated.manifest.provenance, other) == ()
    packages["numpy"]["contents"] = None
    assert {one.field for one in differences(stated.manifest.provenance, other)} >= {"packages.numpy.sha256"}


def test_measured_again_here(stated, tmp_path):
    found = reproduce(stated.file, here=True, out=tmp_path / "again.zip", minimum_effect=100.0)

    assert found.complete
    assert found.environment == "here"
    assert {row.key for row in found.rows} == set(stated.suite.keys)
    assert sum(found.verdicts.values()) == len(found.rows)
    assert all(row.ratio_ci95[0] < row.ratio < row.ratio_ci95[1] for row in timed(found.rows))
    assert {row.verdict for row in timed(found.rows) if row.ratio_ci95[1] < 100} <= {Relation.SAME}
    assert set(found.machine) == {"compute", "memory", "call"}
    assert all(ratio > 0 for ratio in found.machine.values())
    # The suite was run in this process: nothing of it changed, whatever its latencies did.
    assert [one.field for one in found.differences] == []
    again = unpack(tmp_path / "again.zip", tmp_path / "unpacked")
    assert again.run != stated.run
    assert again.suite == stated.suite.hash
    assert {name: again.provenance.settings[name] for name in FEW} == FEW


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    """Stands for every environment: this one in a process of its own. That they are made is tested where they are."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/dlbricks").symlink_to(Path(dlbricks.__file__).resolve().parent, target_is_directory=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    asked: list[bytes] = []

    def made(lock: Path) -> Path:
        asked.append(lock.read_bytes())
        return python

    monkeypatch.setattr(module, "locked_environment", made)
    return asked


def test_measured_again_by_another_python(stated, other_python, tmp_path):
    found = reproduce(doctored(stated.file, tmp_path / "locked.zip", lock=LOCK))

    assert other_python == [LOCK]
    assert found.environment == "lock"
    assert found.complete


@pytest.mark.slow
def test_an_environment_that_cannot_be_had_is_an_error(stated, monkeypatch, tmp_path):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = write_wheel(tmp_path, "apart")
    lock = tmp_path / "pylock.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "apart"\nversion = "1.0"\n'
        f'[[packages.wheels]]\npath = "{wheel.name}"\nhashes = {{sha256 = "{"0" * 64}"}}\n'
    )

    with pytest.raises(BackendUnavailable, match="another hash than the lock's: apart"):
        reproduce(stated.file, lock=lock)


def only(keys, every):
    return [(one, blocks) for one, blocks in every if one.key in keys]


def test_a_manifest_that_lacks_bricks_is_not_reproduced(stated, here, cli):
    """Nor one that has none at all."""
    for count in (1, 0):
        keys = stated.suite.keys[:count]
        doctored(stated.file, here / "less.zip", measurements=partial(only, keys))

        done = cli("reproduce", "less.zip", "--here", "--json", "-q")
        looked = cli("reproduce", "less.zip", "--dry-run")

        assert done.code == looked.code == 3
        assert len(done.json["results"]) == sum(done.json["verdicts"].values()) == count
        assert done.json["missing"] == list(stated.suite.keys[count:])
        assert f"not in the manifest: {len(stated.suite.keys) - count} brick" in looked.out
        assert all(key[:12] in looked.out for key in stated.suite.keys[count:])
    assert not Reproduction((), (), "here", 0.15).complete
    assert Reproduction((), (), None, 0.15).complete


def test_a_suite_that_is_another_one_is_refused(stated, tmp_path, write_lrn, monkeypatch):
    monkeypatch.delattr(module, "run_here")
    other = generate(find_models([write_lrn(tmp_path / "lrn.onnx")]), granularity=1, out=tmp_path / "other").suite

    with pytest.raises(UsageError, match="and the manifest is about"):
        reproduce(stated.file, suite=other, here=True)
    with pytest.raises(UsageError, match="is not positive"):
        reproduce(stated.file, suite=stated.suite, minimum_effect=0)
    with pytest.raises(UsageError, match="is no place for a file"):
        reproduce(stated.file, here=True, out=tmp_path)


def test_without_a_lock_it_says_what_to_do(stated):
    with pytest.raises(UsageError, match=r"hashes of \d+ packages were unknown: .*numpy.*--here.*--lock.*--hashes"):
        reproduce(stated.file)


def test_the_commands(stated, here, cli):
    done = cli("manifest", stated.suite.path, "--db", stated.database, "-o", "results.zip", "--json")
    (row,) = done.json["results"]
    assert done.code == 0
    assert row["bricks"] == len(stated.suite.keys)
    assert row["run"] == stated.run

    looked = cli("reproduce", "results.zip", "--dry-run", "--json").json
    assert looked["differences"] == looked["results"] == looked["missing"] == []
    assert looked["verdicts"] is None

    again = cli("reproduce", "results.zip", "--suite", stated.suite.path, "--here", "-o", "again.zip", "--json", "-q")
    assert again.code == 0
    assert set(again.json["verdicts"]) == {"SAME", "FASTER", "SLOWER", "UNCLEAR"}
    assert sum(again.json["verdicts"].values()) == len(again.json["results"]) == len(stated.suite.keys)
    assert cli("reproduce", "again.zip", "--dry-run").code == 0

    both = cli("reproduce", "results.zip", "--here", "--lock", "x")
    assert both.code == 2
    assert "--here takes this environment" in both.error


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(stated, here, cli, monkeypatch):
    monkeypatch.delattr(module, "run_here")
    for command in (("reproduce", stated.file, "--here"), ("manifest", stated.suite.path)):
        for out, message in [
            ("nowhere/again.zip", "the folder of nowhere/again.zip does not exist"),
            (here, " is a folder"),
        ]:
            done = cli(*command, "-o", out)
            assert done.code == 2
            assert message in done.error


@pytest.mark.slow
def test_libraries_of_operators_are_wanted_by_content_and_reach_the_other_environment(
    stated, here, cli, other_python, monkeypatch
):
    library = pytest.importorskip("onnxruntime_extensions").get_library_path()
    monkeypatch.setattr(custom_ops, "_files", {})
    digest = custom_ops.register_custom_ops(library)
    options = {**stated.manifest.provenance.settings["options"], custom_ops.CUSTOM_OPS: digest}
    doctored(stated.file, here / "own.zip", lock=LOCK, settings={"options": options})
    command = ("reproduce", "own.zip", "-o", "again.zip", "-q")
    custom_ops._files.clear()

    refused = cli(*command)
    assert refused.code == 2
    assert "name it with --custom-ops" in refused.error

    assert cli(*command, "--custom-ops", library).code == 0
    software = unpack(here / "again.zip", here / "unpacked").provenance.software
    assert software["options"][custom_ops.CUSTOM_OPS] == digest


def test_a_brick_that_is_not_measured_has_no_verdict(stated, monkeypatch):
    def run_less(suite, database, settings, *, progress=None):
        """Measure all bricks but one."""
        fewer = dataclasses.replace(suite, keys=suite.keys[1:])
        original(fewer, database, settings, progress=progress)

    original = module.run_here
    monkeypatch.setattr(module, "run_here", run_less)

    found = reproduce(stated.file, here=True)

    (lost,) = [row for row in found.rows if row.verdict is None]
    assert lost.key == stated.suite.keys[0]
    assert (lost.pair.other.measured, lost.reason) == (None, "not measured")
    assert not found.complete
    assert "1 not measured" in render(reproduction_answer(found))


def test_a_limit_is_crossed_by_one_brick(stated, here, cli):
    doctored(stated.file, here / "fast.zip", measurements=scaled(0.01))

    done = cli("reproduce", "fast.zip", "--here", "--fail-on", "slower", "-q")

    assert done.code == 4
    assert "SLOWER" in done.out
    assert "FASTER" not in done.out

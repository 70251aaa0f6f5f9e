"""Manifests measured again, really; and what is said of each difference."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path

import dlbricks
import pytest
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.manifests import reproduce as module
from dlbricks.analyzer.manifests.manifest import Manifest, read_manifest
from dlbricks.analyzer.manifests.reproduce import Reproduction, differences, reproduce
from dlbricks.analyzer.report.answers.reproduction import reproduction_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.decomposition.generate import generate
from dlbricks.models import find_models
from lab import changed
from wheels import write_wheel

from .conftest import FEW


@pytest.fixture
def file(stated, tmp_path):
    path = tmp_path / "results.json"
    stated.manifest.write(path)
    return path


def scaled(manifest: Manifest, factor: float) -> Manifest:
    """The same, had everything taken so many times as long."""

    def times(one):
        own = one.measurement
        longer = changed(own, mean_ns=own.latency_ns * factor, undisturbed_ns=own.undisturbed_ns * factor)
        return dataclasses.replace(one, measurement=longer)

    return dataclasses.replace(manifest, measurements=tuple(times(one) for one in manifest.measurements))


def with_errors(manifest: Manifest, quiet: tuple[float, float] | None) -> Manifest:
    """The same, all of it on a quiet machine, with a hopeless mean and this error of the undisturbed latency."""

    def known(one):
        own = one.measurement
        quietly = changed(own, mean_ns=1e6, undisturbed_ns=1e6, quiet=0.5)
        return dataclasses.replace(one, measurement=quietly, error=(0.5, 50.0), undisturbed=quiet)

    return dataclasses.replace(manifest, measurements=tuple(known(one) for one in manifest.measurements))


def timed(rows):
    """Without bricks so short that on a busy machine nothing is left of them beside what a visit costs."""
    return [row for row in rows if row.ratio is not None]


def leaves(value, name):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}")
    else:
        yield name


def altered(part, path):
    """The part with one leaf of it changed."""
    changed = copy.deepcopy(part)
    *way, last = path
    inner = changed
    for key in way:
        inner = inner[key]
    inner[last] = [*inner[last], "more"] if isinstance(inner[last], list) else f"{inner[last]}?"
    return changed


def test_every_altered_field_is_named(stated):
    manifest, unnamed = stated.manifest, []
    for part in ("hardware", "software", "data", "settings"):
        for name in leaves(getattr(manifest, part), part):
            if name in {"software.lock", "software.without_hash"} or name.endswith((".wheel", ".sha256")):
                continue
            changed = altered(dict(getattr(manifest, part)), name.split(".")[1:])
            found = differences(manifest, dataclasses.replace(manifest, **{part: changed}))
            if [one.field for one in found] != [name]:
                unnamed.append(name)

    assert not unnamed
    assert differences(manifest, manifest) == ()


def test_a_wheel_is_no_difference_where_its_files_are_the_same(stated):
    packages = {name: dict(one) for name, one in stated.manifest.software["packages"].items()}
    packages["numpy"] |= {"wheel": "numpy.whl", "sha256": "1" * 64}
    other = dataclasses.replace(stated.manifest, software=dict(stated.manifest.software) | {"packages": packages})

    assert differences(stated.manifest, other) == ()
    packages["numpy"]["contents"] = None
    assert {one.field for one in differences(stated.manifest, other)} >= {"software.packages.numpy.sha256"}


def test_measured_again_here(stated, file):
    found = reproduce(file, suite=stated.suite, here=True)

    assert found.complete
    assert found.environment == "here"
    assert {row.key for row in found.rows} == set(stated.suite.keys)
    assert sum(found.verdicts.values()) == len(found.rows)
    assert all(row.ratio_ci95[0] < row.ratio < row.ratio_ci95[1] for row in timed(found.rows))
    assert set(found.machine) == {"compute", "memory", "call"}
    assert all(ratio > 0 for ratio in found.machine.values())
    # The suite was run in this process: nothing of it changed, whatever its latencies did.
    assert [one.field for one in found.differences] == []
    assert found.manifest is not None
    assert found.manifest.log["run"] != stated.run
    assert {name: found.manifest.settings[name] for name in FEW} == FEW


def test_undisturbed_latencies_are_as_sure_as_quiet_visits_make_them(stated):
    def verdicts(one: tuple[float, float] | None, other: tuple[float, float] | None):
        base, again = with_errors(stated.manifest, one), with_errors(stated.manifest, other)
        return {row.verdict for row in module._compare_bricks(base, again, stated.suite, 0.15)}

    assert verdicts((0.01, 50.0), (0.01, 50.0)) == {Relation.SAME}
    assert verdicts((0.01, 50.0), (0.2, 50.0)) == {Relation.UNCLEAR}
    assert verdicts((0.01, 50.0), None) == {Relation.UNCLEAR}  # the means decide


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    """Stands for every environment: this one in a process of its own. That they are made is tested where they are."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/dlbricks").symlink_to(Path(dlbricks.__file__).resolve().parent, target_is_directory=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    asked: list[str] = []

    def made(lock: Path) -> Path:
        asked.append(lock.read_text())
        return python

    monkeypatch.setattr(module, "locked_environment", made)
    return asked


def locked(manifest: Manifest) -> Manifest:
    text = 'lock-version = "1.0"\ncreated-by = "test"\npackages = []\n'
    return dataclasses.replace(manifest, software=dict(manifest.software) | {"lock": text})


def test_measured_again_by_another_python(stated, other_python):
    base = locked(stated.manifest)

    found = reproduce(base, suite=stated.suite)

    assert other_python == [base.software["lock"]]
    assert found.environment == "lock"
    assert found.complete


@pytest.mark.slow
def test_an_environment_that_cannot_be_had_is_an_error(stated, file, monkeypatch, tmp_path):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = write_wheel(tmp_path, "apart")
    lock = tmp_path / "pylock.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "apart"\nversion = "1.0"\n'
        f'[[packages.wheels]]\npath = "{wheel.name}"\nhashes = {{sha256 = "{"0" * 64}"}}\n'
    )

    with pytest.raises(BackendUnavailable, match="another hash than the lock's: apart"):
        reproduce(file, suite=stated.suite, lock=lock)


def test_verdicts_are_those_of_compare(stated):
    manifest = stated.manifest
    again = {
        factor: module._compare_bricks(manifest, scaled(manifest, factor), stated.suite, 0.15)
        for factor in (1, 40, 0.02)
    }

    assert {row.verdict for row in again[40]} <= {Relation.SLOWER, Relation.UNCLEAR}
    assert {row.verdict for row in again[0.02]} <= {Relation.FASTER, Relation.UNCLEAR}
    assert all(row.ratio == pytest.approx(1) for row in timed(again[1]))
    sure = [row.key for row in timed(again[1]) if row.ratio_ci95[1] < 1.5]
    assert all(row.verdict is Relation.SLOWER for row in again[40] if row.key in sure)
    whole = module._compare_bricks(manifest, manifest, stated.suite, 100.0)
    assert {row.verdict for row in timed(whole) if row.ratio_ci95[1] < 100} <= {Relation.SAME}


def test_a_manifest_that_lacks_bricks_is_not_reproduced(stated, here, cli):
    """Nor one that has none at all."""
    for kept in (1, 0):
        less = dataclasses.replace(stated.manifest, measurements=stated.manifest.measurements[:kept])
        less.write("less.json")
        known = {one.measurement.key for one in less.measurements}
        missing = [key for key in stated.suite.keys if key not in known]

        done = cli("reproduce", "less.json", "--suite", stated.suite.path, "--here", "--json", "-q")
        looked = cli("reproduce", "less.json", "--suite", stated.suite.path, "--dry-run")

        assert done.code == looked.code == 3
        assert len(done.json["results"]) == sum(done.json["verdicts"].values()) == kept
        assert done.json["missing"] == missing
        assert f"not in the manifest: {len(missing)} brick" in looked.out
        assert all(key[:12] in looked.out for key in missing)
    assert not Reproduction((), (), "here", 0.15).complete
    assert Reproduction((), (), None, 0.15).complete


def test_a_machine_that_moved_is_seen_by_its_probes(stated):
    log = dict(stated.manifest.log)
    compute, memory = log["probes_ns"]
    log |= {"probes_ns": [2 * compute, memory], "references": []}

    assert module._machine(stated.manifest, dataclasses.replace(stated.manifest, log=log)) == {
        "compute": 2,
        "memory": 1,
    }
    unknown = dataclasses.replace(stated.manifest, log=log | {"probes_ns": None})
    assert module._machine(stated.manifest, unknown) == {}


def test_a_suite_that_is_another_one_is_refused(stated, file, tmp_path, write_lrn):
    other = generate(find_models([write_lrn(tmp_path / "lrn.onnx")]), granularity=1, out=tmp_path / "other").suite

    with pytest.raises(UsageError, match="and the manifest is about"):
        reproduce(file, suite=other, here=True)
    with pytest.raises(UsageError, match="is not positive"):
        reproduce(file, suite=stated.suite, minimum_effect=0)


def test_a_brick_that_is_not_of_the_suite_is_refused_before_anything_is_measured(stated, monkeypatch):
    monkeypatch.delattr(module, "run_here")
    first, *others = stated.manifest.measurements
    strange = dataclasses.replace(first, measurement=changed(first.measurement, key="0" * 64))
    base = dataclasses.replace(stated.manifest, measurements=(strange, *others))

    for how in ({"here": True}, {"dry_run": True}):
        with pytest.raises(UsageError, match=f"has bricks that suite .* lacks: {'0' * 64}"):
            reproduce(base, suite=stated.suite, **how)


def test_without_a_lock_it_says_what_to_do(stated, file):
    base = read_manifest(file)
    software = dict(base.software) | {"lock": None, "without_hash": ["a", "b", "c", "d"]}

    with pytest.raises(UsageError, match=r"hashes of a, b, c and 1 more .*--here.*--lock.*--hashes"):
        reproduce(dataclasses.replace(base, software=software), suite=stated.suite)


def test_the_commands(stated, here, cli):
    done = cli("manifest", stated.suite.path, "--db", stated.database, "-o", "results.json", "--json")
    (row,) = done.json["results"]
    assert done.code == 0
    assert row["bricks"] == len(stated.suite.keys)
    assert row["run"] == stated.run

    looked = cli("reproduce", "results.json", "--suite", stated.suite.path, "--dry-run", "--json").json
    assert looked["differences"] == looked["results"] == looked["missing"] == []
    assert looked["verdicts"] is None

    again = cli("reproduce", "results.json", "--suite", stated.suite.path, "--here", "-o", "again.json", "--json", "-q")
    assert again.code == 0
    assert set(again.json["verdicts"]) == {"SAME", "FASTER", "SLOWER", "UNCLEAR"}
    assert sum(again.json["verdicts"].values()) == len(again.json["results"]) == len(stated.suite.keys)
    assert read_manifest("again.json").model == read_manifest("results.json").model

    both = cli("reproduce", "results.json", "--suite", stated.suite.path, "--here", "--lock", "x")
    assert both.code == 2
    assert "--here takes this environment" in both.error


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(stated, file, here, cli, monkeypatch):
    monkeypatch.delattr(module, "run_here")
    for command in (("reproduce", file, "--suite", stated.suite.path, "--here"), ("manifest", stated.suite.path)):
        for out, message in [
            ("nowhere/again.json", "the folder of nowhere/again.json does not exist"),
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
    settings = dict(stated.manifest.settings)
    settings["options"] = {**settings["options"], custom_ops.CUSTOM_OPS: digest}
    dataclasses.replace(locked(stated.manifest), settings=settings).write("own.json")
    command = ("reproduce", "own.json", "--suite", stated.suite.path, "-o", "again.json", "-q")
    custom_ops._files.clear()

    refused = cli(*command)
    assert refused.code == 2
    assert "name it with --custom-ops" in refused.error

    assert cli(*command, "--custom-ops", library).code == 0
    assert read_manifest("again.json").software["options"][custom_ops.CUSTOM_OPS] == digest


def test_a_brick_that_is_not_measured_has_no_verdict(stated):
    manifest = stated.manifest
    less = dataclasses.replace(manifest, measurements=manifest.measurements[1:])

    rows = module._compare_bricks(manifest, less, stated.suite, 0.15)

    (lost,) = [row for row in rows if row.verdict is None]
    assert lost.key == manifest.measurements[0].measurement.key
    assert (lost.pair.other.measured, lost.reason) == (None, "not measured")
    found = Reproduction(rows, (), "here", 0.15, less)
    assert not found.complete
    assert "1 not measured" in render(reproduction_answer(found))


def test_a_limit_is_crossed_by_one_brick(stated, here, cli, monkeypatch):
    scaled(stated.manifest, 0.01).write("fast.json")

    done = cli("reproduce", "fast.json", "--suite", stated.suite.path, "--here", "--fail-on", "slower", "-q")

    assert done.code == 4
    assert "SLOWER" in done.out

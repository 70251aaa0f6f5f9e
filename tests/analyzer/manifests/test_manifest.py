"""Manifests: what they say, what they keep to themselves, and which files are none."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dlbricks.analyzer.manifests.manifest import PREDICATE, STATEMENT, manifest, read_manifest, refuse_paths
from dlbricks.db import Stack, Store, Subject
from dlbricks.db.values import content_key
from dlbricks.errors import AmbiguousQuery, UsageError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import machine_state, probe_system
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models

from .conftest import FEW


def test_a_manifest_is_a_statement_about_measurements_and_suite(stated):
    said = stated.manifest.statement()

    assert (said["_type"], said["predicateType"]) == (STATEMENT, PREDICATE)
    digests = {one["name"]: one["digest"]["sha256"] for one in said["subject"]}
    assert digests == {"suite": stated.suite.hash, "measurements": content_key(said["predicate"]["measurements"])}
    parts = {"hardware", "software", "model", "data", "settings", "reference_log", "measurements"}
    assert set(said["predicate"]) == parts


def test_it_says_what_the_run_was_measured_on_and_with(stated):
    found = stated.manifest
    state, system = machine_state(), probe_system()

    assert found.hardware["cpu"] == system.cpu
    assert found.hardware["isa"] == list(system.isa)
    for name in ("kernel", "microcode", "governor", "turbo", "smt", "cpu_quota", "virtual"):
        assert found.hardware[name] == state[name]
    assert found.stack.key in Store.open(stated.database, read_only=True).stacks()
    assert found.software["packages"]["numpy"]["version"] == found.data["generator"]["numpy"]
    assert found.data["seed"] == 0
    assert {name: found.settings[name] for name in FEW} == FEW
    assert found.settings["backend"] == "onnxruntime"
    assert (found.model["granularity"], found.model["graph"]) == (1, "source")
    assert found.log["run"] == stated.run
    assert found.log["probes_ns"][0] > 0
    (call,) = found.log["references"]
    assert call["latency_ns"] > 0


def test_it_holds_every_brick_with_its_interval(stated):
    with Store.open(stated.database, read_only=True) as store:
        stored = {one.key: one for one in store.measurements(subject=Subject.BRICK)}

    assert stated.manifest.complete
    assert {one.measurement.key for one in stated.manifest.measurements} == set(stated.suite.keys) == set(stored)
    for one in stated.manifest.measurements:
        assert one.measurement == stored[one.measurement.key]
        assert one.error[0] > 0 or one.measurement.latency_ns <= 0


def test_it_names_no_model_host_node_campaign_or_path(stated):
    words = json.dumps(stated.manifest.statement())

    secrets = ["secret-name", "annas-laptop", "hush", str(stated.suite.path), str(Path.home()), socket.gethostname()]
    assert not [secret for secret in secrets if len(secret) > 2 and secret in words]
    assert stated.manifest.model["models"] == {}
    assert all(one.measurement.subject is Subject.BRICK for one in stated.manifest.measurements)


def test_an_annotated_suite_has_names_and_models(tmp_path, write_branches):
    models = find_models([write_branches(tmp_path / "branches.onnx")])
    made = generate(models, granularity=1, out=tmp_path / "suite", annotate=True).suite
    with Store.open("sqlite://") as store:
        run(made, store=store, models=models, **FEW)
        found = manifest(made, store=store)

    (model,) = [one for one in found.measurements if one.measurement.subject is Subject.MODEL]
    assert found.model["names"] == ["branches"]
    assert found.model["models"] == {model.measurement.key: {"dims": {}}}


def test_a_file_gives_back_what_was_written(stated, tmp_path):
    path = tmp_path / "results.json"
    stated.manifest.write(path)

    found = read_manifest(path)

    assert found.statement() == stated.manifest.statement()
    assert found.stack == stated.manifest.stack
    assert found.measurements[0].measurement.stack == found.stack.key


def test_what_was_changed_is_refused(stated, tmp_path):
    path = tmp_path / "results.json"

    for change, message in [
        (lambda said: said["predicate"]["measurements"][0].update(mean_ns=1.0), "was changed"),
        (lambda said: said["predicate"]["model"].update(suite="0"), "was changed"),
        (lambda said: said["predicate"].pop("model"), "not a dlbricks manifest"),
        (lambda said: said["predicate"]["reference_log"].pop("probes_ns"),
         "missing required field `probes_ns`"),
        (lambda said: said["predicate"]["settings"].update(visits=0), "visits cannot be 0"),
        (lambda said: said["predicate"]["settings"].update(later=1), "not a dlbricks manifest"),
        (lambda said: said.update(predicateType="urn:dlbricks:manifest:9"), "of another version"),
        (dict.clear, "not a dlbricks manifest"),
    ]:  # fmt: skip
        said = copy.deepcopy(stated.manifest.statement())
        change(said)
        path.write_text(json.dumps(said))
        with pytest.raises(UsageError, match=message):
            read_manifest(path)
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match="not a dlbricks manifest"):
            read_manifest(path)
    with pytest.raises(UsageError, match="not a dlbricks manifest"):
        read_manifest(tmp_path / "nothing.json")


WRONG = {
    "hardware": ({}, []), "hardware.cpu": (5,),
    "software.versions": ([],), "software.options.arena": (1,), "software.packages": (["numpy"],),
    "software.packages.numpy": ("2.0",), "software.without_hash": ("numpy", None), "software.lock": (["pylock"],),
    "model.names": (None,), "data": ({},),
    "settings.backend": ([],), "settings.visits": ("24",), "settings.threads": (True,),
    "settings.options": ({"arena": 1},),
    "reference_log": ({},), "reference_log.run": (None,), "reference_log.probes_ns": (7, ["7"]),
    "reference_log.references": ([{"name": "@overhead"}],), "reference_log.failures": ([{"key": "0", "kind": None}],),
    "reference_log.missing": (None,),
    "measurements": ({},), "measurements.0": ([],), "measurements.0.key": (0,),
    "measurements.0.mean_ns": ("1", float("nan"), 10**400), "measurements.0.undisturbed_ns": (-1.0,),
    "measurements.0.ci95_ns": ([1.0],), "measurements.0.block_medians_ns": ([None],),
    "measurements.0.conditions": (None,), "measurements.0.conditions.threads": ("1",),
    "measurements.0.conditions.later": (1,), "measurements.0.verdict": ("perfect",),
    "measurements.0.error": (-1.0, None), "measurements.0.degrees": (0,),
    "measurements.0.undisturbed_error": ([], 0.1, [-0.1, 3.0], [0.1, 0.0]), "measurements.0.later": (1,),
}  # fmt: skip


@pytest.mark.parametrize("way", WRONG)
def test_what_lacks_a_field_or_has_another_type_is_refused(stated, tmp_path, way):
    """By whoever wrote it: the digest is that of what is there."""
    path = tmp_path / "results.json"
    *before, last = (int(one) if one.isdigit() else one for one in way.split("."))
    for value in WRONG[way]:
        said = copy.deepcopy(stated.manifest.statement())
        inner = said["predicate"]
        for step in before:
            inner = inner[step]
        inner[last] = value
        said["subject"][0]["digest"]["sha256"] = content_key(said["predicate"]["measurements"])
        path.write_text(json.dumps(said))

        with pytest.raises(UsageError, match="not a dlbricks manifest"):
            read_manifest(path)


def test_the_run_that_is_meant_is_named(stated, tmp_path):
    with Store.open("sqlite://") as store:
        with pytest.raises(UsageError, match="no finished run"):
            manifest(stated.suite, store=store)
        first = run(stated.suite, store=store, **FEW).run
        run(stated.suite, store=store, cache="hot", **FEW)

        with pytest.raises(AmbiguousQuery, match=r"2 runs .* match: .*cache model.*cache hot"):
            manifest(stated.suite, store=store)
        by_cache = manifest(stated.suite, store=store, cache="model")
        by_name = manifest(stated.suite, store=store, run=first[:8])
        with pytest.raises(UsageError, match=r"no finished run .* finished are"):
            manifest(stated.suite, store=store, run="nobody")
        with pytest.raises(UsageError, match="no finished run"):
            manifest(stated.suite, store=store, backend="torch")

    assert by_cache.log["run"] == by_name.log["run"] == first


def test_an_option_that_is_a_path_is_refused():
    stack = Stack("onnxruntime", "cpu", (), (("profile", "/home/anna/x"),))

    with pytest.raises(UsageError, match="may be a path"):
        refuse_paths(stack, {})
    with pytest.raises(UsageError, match="may be a path"):
        refuse_paths(Stack("onnxruntime", "cpu", ()), {"options": {"a": "~/x"}})


def test_a_file_is_written_whole_or_not_at_all(stated, tmp_path):
    path, pipe, link = (tmp_path / name for name in ("results.json", "pipe", "link.json"))
    path.write_text("what was there")
    link.symlink_to(path)
    unwritable = dataclasses.replace(stated.manifest, data={"seed": object()})
    with pytest.raises(TypeError):
        unwritable.write(path)
    assert path.read_text() == "what was there"

    stated.manifest.write(link)
    assert link.is_symlink()
    assert read_manifest(path).model == stated.manifest.model
    with pytest.raises(FileNotFoundError, match=r"nowhere/results\.json"):
        stated.manifest.write(tmp_path / "nowhere/results.json")
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        stated.manifest.write(pipe)
        assert read.result() == path.read_text()
    assert {one.name for one in tmp_path.iterdir()} == {"results.json", "pipe", "link.json"}

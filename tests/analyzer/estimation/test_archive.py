"""Decompositions that are kept answer as those made now, and are used only where they still say so."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import uuid
import zlib

import onnx
import pytest
from dlbricks import estimate
from dlbricks.analyzer.estimation import survey as survey_module
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.bricks.graph.footprint import REUSE_LEVELS, level_name
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.constructor.uncertainty.pairing import FUSION
from dlbricks.db import Conditions, Measurement, Run, Stop, Store, Subject
from dlbricks.errors import DiskFull
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition import cutter as cutter_module
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import find_models
from lab import summary_of
from sqlalchemy import Engine, event

MODELS = find_models(["squeezenet", "bert_base"])

CUTS = [
    {},
    {"granularity": 4},
    {"granularity": 4, "overlap": True},
    {"granularity": 4, "connected": True},
    {"graph": "runtime"},
    {"graph": "runtime", "granularity": 4},
    {"graph": "fused"},
    {"graph": "fused", "granularity": 4, "overlap": True, "connected": True},
]

SIGNED = """
<ir_version: 10, opset_import: ["" : 21]>
signed (float[4,8] x) => (float[4,8] y) <float s = {0.1}, int8 z = {3}> {
    q = QuantizeLinear(x, s, z)
    a = DequantizeLinear(q, s, z)
    b = Sigmoid(a)
    y = Tanh(b)
}
"""


@pytest.fixture
def counted(monkeypatch):
    """Names of the models that were really decomposed."""
    made: list[str] = []
    call = cutter_module.Cutter.__call__

    def counting(self, source, executed=None):
        made.append(source.name)
        return call(self, source, executed)

    monkeypatch.setattr(cutter_module.Cutter, "__call__", counting)
    return made


def old(path, seconds=100):
    """Let a file have been written a while ago."""
    then = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(then, then))
    return path


@pytest.fixture
def settled(lab, fork):
    """The fork, in a file that was written a while ago."""
    old(fork.path)
    return fork


def rows(lab, table="decomposition"):
    raw = sqlite3.connect(lab.store.place.path)
    try:
        return raw.execute(f"SELECT * FROM {table}").fetchall()
    finally:
        raw.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A database with a latency for every brick of two models and of what the runtime here executes for them."""
    rng, path = random.Random(1), tmp_path_factory.mktemp("home") / "home.db"
    system, stack, run = probe_system(), get("onnxruntime").stack("cpu", {}), str(uuid.uuid4())
    with Store.open(path) as store:
        store.put_system(system)
        store.put_stack(stack)
        store.begin_run(Run(run, "2026-11-21T00:00:00Z", "0", "run", None, system.key, stack.key))

        def measured(subject, key, cache, variant=""):
            ns = rng.uniform(1e4, 1e6)
            return Measurement(
                id=str(uuid.uuid4()), run=run, subject=subject, key=key, system=system.key, stack=stack.key,
                conditions=Conditions(1, cache), unroll=1, summary=summary_of(ns), stop=Stop.CONVERGED,
                reference_ns=1e5, variant=variant,
            )  # fmt: skip

        keys: set[str] = set()
        for options in CUTS:
            keys |= {part.key for answer in estimate(MODELS, store=store, **options) for part in answer.sequences}
        levels = [level_name(level) for level in REUSE_LEVELS]
        places = [(key, level) for level in levels for key in sorted(keys)]
        made = [measured(Subject.BRICK, *place, variant) for variant in ("", *FUSION) for place in places]
        made += [measured(Subject.REFERENCE, built_in_key(OVERHEAD), level) for level in (*levels, "hot")]
        store.add((one, ()) for one in made)
        store.add((measured(Subject.MODEL, build_graph(one.skeleton()).key, "hot"), ()) for one in MODELS)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("options", CUTS, ids=lambda options: "-".join(map(str, options.values())) or "plain")
def test_what_is_kept_answers_as_what_is_made_now(home, tmp_path, counted, monkeypatch, options):
    path = shutil.copy(home, tmp_path)
    with Store.open(path) as store:
        kept = estimate(MODELS, store=store, **options)
        assert counted == []
        monkeypatch.setattr(survey_module, "_archive", lambda *_: None)
        made = estimate(MODELS, store=store, **options)
    assert len(counted) >= len(MODELS)
    for one, other in zip(kept, made, strict=True):
        assert estimate_record(one) == estimate_record(other)
        assert one == other
        assert one.estimate_ms is not None
        known = {name for name, term in one.attribution.items() if term.ms is not None}
        assert known >= {"bricks", "fusion", "overhead", "cache", "unexplained"}


def test_a_printed_answer_is_the_same(home, tmp_path, cli, monkeypatch):
    path = shutil.copy(home, tmp_path)
    command = ("estimate", "squeezenet", "bert_base", "--explain", "--layers", "--json", "--db", path)
    kept = cli(*command)
    monkeypatch.setattr(survey_module, "_archive", lambda *_: None)
    assert cli(*command) == kept
    assert len(kept.json["results"]) == 2


def test_many_models_take_no_more_queries_than_few(lab, counted):
    """On a server every query is a way there and back."""
    texts = [SIGNED.replace("float[4,8]", f"float[4,{size}]") for size in range(9, 18)]
    sources = [lab.source(text, f"model{number}") for number, text in enumerate(texts)]
    for source in sources:
        old(source.path)
    estimate(sources, store=lab.store)
    assert len(counted) == len(sources)
    asked: list[str] = []

    def note(_connection, _cursor, statement, *_rest):
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        counts = []
        for some in (sources[:2], sources):
            asked.clear()
            assert all(one.error is None for one in estimate(some, store=lab.store))
            counts.append(len(asked))
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert counts[0] == counts[1]
    assert len(counted) == len(sources)


def test_each_cut_is_kept_for_itself(lab, settled, counted):
    for options in ({}, {"granularity": 2}, {"granularity": 2, "overlap": True}, {"granularity": 2, "connected": True}):
        estimate([settled], store=lab.store, **options)
    estimate([settled], store=lab.store, granularity=2)
    assert len(counted) == 4


@pytest.mark.skipif(not get("openvino").probe().ok, reason="OpenVINO is not installed")
def test_what_a_runtime_fuses_is_kept_for_its_units_and_never_taken_for_what_runs_in_parts(lab, settled, counted):
    def found(graph):
        (answer,) = estimate([settled], store=lab.store, graph=graph, backend="openvino", cache="hot")
        return answer

    first, again, refused = found("fused"), found("fused"), found("runtime")

    assert first.error is again.error is None
    assert first.unique == again.unique
    assert "nothing of it runs by itself" in refused.error
    assert counted == [settled.name] * 2  # the second answer is kept, the third is asked for and refused


def test_what_libraries_of_operators_showed_is_kept_for_them(lab, settled, counted, monkeypatch):
    library = lab.folder / "own.so"
    library.write_bytes(b"never loaded: no shape of this model is unknown")
    (first,) = estimate([settled], store=lab.store)
    with monkeypatch.context() as given:
        given.setattr(custom_ops, "_files", {})
        custom_ops.register_custom_ops(library)
        for _ in range(2):
            assert estimate([settled], store=lab.store).rows == (first,)
    assert len(counted) == 2
    assert estimate([settled], store=lab.store).rows == (first,)
    assert len(counted) == 2


def test_a_model_as_a_runtime_takes_it_is_kept_for_that_runtime(lab, counted, monkeypatch):
    source = lab.source(SIGNED, "signed")
    old(source.path)

    def found(machine, turned):
        """The estimate on a machine whose runtime turns these signed values into unsigned ones."""
        with monkeypatch.context() as there:
            for module in ("analyzer.estimation.archive", "generator.decomposition.executed"):
                there.setattr(f"dlbricks.{module}.instruction_set", lambda: machine)
            there.setattr("dlbricks.generator.decomposition.executed.unsigned_values", lambda *_: turned)
            (answer,) = estimate([source], store=lab.store, graph="fused")
            return answer

    one, other = found("arm", frozenset()), found("x86", frozenset({"q"}))

    assert {part.key for part in one.sequences} != {part.key for part in other.sequences}
    assert (found("arm", None), found("x86", None)) == (one, other)
    assert counted == ["signed", "signed"]


def test_batches_and_dimensions_are_kept_apart(lab, counted):
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    wide (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }
    """
    path = lab.source(text, "wide").path
    for dims in ({"N": 2}, {"N": 3}, {"N": 2}):
        (answer,) = estimate(find_models([path], dims=dims), store=lab.store)
        assert answer.bound == dims
    assert len(counted) == 2


def test_a_file_that_moved_or_was_touched_is_the_same_model(lab, settled, counted):
    (first,) = estimate([settled], store=lab.store)
    old(settled.path, 50)
    assert estimate([settled], store=lab.store).rows == (first,)
    moved = shutil.move(settled.path, lab.folder / "elsewhere.onnx")
    (answer,) = estimate(find_models([moved]), store=lab.store)
    assert (answer.name, answer.unique) == ("elsewhere", first.unique)
    assert counted == ["fork"]


def test_a_file_that_changed_is_another_model(lab, settled, counted):
    estimate([settled], store=lab.store)
    state = settled.path.stat()
    data = settled.path.read_bytes()
    settled.path.write_bytes(data.replace(b"Tanh", b"Sinh"))
    (answer,) = estimate([settled], store=lab.store)
    assert counted == ["fork", "fork"]
    assert "Sinh" in [name for part in answer.sequences for name in part.op_types]
    assert state.st_size == settled.path.stat().st_size


def test_a_file_written_a_moment_ago_is_read_for_its_content_every_time(lab, fork, counted):
    estimate([fork], store=lab.store)
    state = fork.path.stat()
    fork.path.write_bytes(fork.path.read_bytes().replace(b"Tanh", b"Sinh"))
    os.utime(fork.path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as if within one tick of the clock
    (answer,) = estimate([fork], store=lab.store)
    assert "Sinh" in [name for part in answer.sequences for name in part.op_types]
    assert rows(lab, "model_file") == []


@pytest.mark.parametrize("data", [b"", zlib.compress(b"{}"), zlib.compress(b'{"values": [1]}'), "text"])
def test_what_is_damaged_is_made_again(lab, settled, counted, data):
    first = estimate([settled], store=lab.store)
    raw = sqlite3.connect(lab.store.place.path)
    raw.execute("UPDATE decomposition SET data = ?", (data,))
    raw.commit()
    raw.close()
    for _ in range(2):
        assert estimate([settled], store=lab.store) == first
    assert counted == ["fork", "fork"]  # and kept anew


def test_what_other_code_made_is_not_used(lab, settled, counted, monkeypatch):
    estimate([settled], store=lab.store)
    monkeypatch.setattr("dlbricks.analyzer.estimation.archive.__version__", "9.9")
    estimate([settled], store=lab.store)
    assert counted == ["fork", "fork"]
    monkeypatch.setattr("dlbricks.analyzer.estimation.archive._FORMAT", 9)
    estimate([settled], store=lab.store)
    assert len(counted) == 3


def test_shapes_given_by_somebody_are_not_kept(lab, settled, counted):
    for _ in range(2):
        estimate([settled], store=lab.store, oracle=lambda *_: {})
    assert len(counted) == 2
    assert rows(lab) == []


def test_a_model_with_skipped_layers_is_tried_again(lab, counted):
    text = """
    <ir_version: 8, opset_import: ["" : 17, "strange": 1]>
    odd (float[4] x) => (float[4] y) { a = strange.Thing(x)  y = Relu(a) }
    """
    source = lab.source(text, "odd")
    for _ in range(2):
        (answer,) = estimate([source], store=lab.store)
        assert not answer.complete
    assert len(counted) == 2


def test_a_database_opened_for_reading_answers_all_the_same(lab, settled, counted):
    first = estimate([settled], store=lab.store)
    other = lab.source(onnx.printer.to_text(onnx.load(settled.path)).replace("Tanh", "Sinh"), "other")
    with Store.open(lab.store.place.path, read_only=True) as store:
        assert estimate([settled], store=store) == first
        for _ in range(2):
            assert estimate([other], store=store).rows[0].error is None
    assert counted == ["fork", "other", "other"]


def test_a_database_that_is_locked_answers_all_the_same(lab, settled, counted):
    holder = sqlite3.connect(lab.store.place.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Store.open(lab.store.place.path, read_only=True, busy_timeout_s=0.1) as store:
        assert estimate([settled], store=store).rows[0].error is None
    holder.close()
    assert rows(lab) == []


def test_another_fault_of_the_database_is_reported(lab, settled, monkeypatch):
    def full(*_):
        raise DiskFull("no space is left")

    monkeypatch.setattr("dlbricks.analyzer.estimation.archive.keep_records", full)
    with pytest.warns(RuntimeWarning, match="is not kept: no space is left"):
        (answer,) = estimate([settled], store=lab.store)
    assert answer.error is None

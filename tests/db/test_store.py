from __future__ import annotations

import dataclasses
import sqlite3
import uuid
import zlib
from contextlib import closing

import pytest
from dlbricks.db import Block, Conditions, Stack, Store, Subject, Verdict
from dlbricks.db.queries import Filter
from dlbricks.db.rows import pack_samples, pack_visits, to_block
from dlbricks.db.store import OpenedMeasurement
from dlbricks.db.values import PROTOCOL, Identity, Visit
from dlbricks.errors import StoreError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab import changed

from .conftest import block


def test_what_was_finished_comes_back_as_it_was(bench):
    made = bench.measure("a", 1000.0, mean_ns=1250.0, first_run_ns=7_000_000, verdict=Verdict.NOISY)
    absent = bench.measure("b", load_ns=None, first_run_ns=None)
    assert bench.store.measurements() == sorted((made, absent), key=lambda m: m.key)
    assert made.latency_ns == 1250.0  # it answers with its mean
    assert bench.store.systems()[bench.system].key == bench.system
    assert bench.store.stacks()[bench.stack].key == bench.stack


def test_a_field_that_there_is_not_is_the_caller_s_mistake_and_no_damaged_database(bench):
    for ask in (bench.store.measurements, bench.store.failures, bench.store.kernels):
        with pytest.raises(TypeError, match="subjct"):
            ask(subjct=None)


@pytest.mark.sqlite
def test_a_stack_or_system_that_measurements_name_and_the_file_lacks_is_named(bench):
    bench.measure("a")
    with closing(sqlite3.connect(bench.path)) as connection:
        connection.execute("DELETE FROM stack")
        connection.commit()

    (found,) = bench.store.combinations()
    with pytest.raises(StoreError, match=f"lacks {found.stack}, to which it refers; restore a copy"):
        bench.store.stacks()[found.stack]
    assert found.stack not in bench.store.stacks()
    assert bench.store.systems()[found.system].key == found.system


_NUMBER = st.integers(0, 2**63 - 1)


@given(
    st.lists(st.tuples(st.integers(-(2**40), 2**63 - 1), st.integers(1, 2**40)), min_size=1, max_size=200),
    st.builds(Visit, *[_NUMBER] * 3, *[st.none() | _NUMBER] * 3),
    st.integers(0, 2**31 - 1),
)
def test_samples_and_visits_survive_packing(samples, visit, warmups):
    visits = (visit,) * len(samples)
    data, packed = pack_samples(samples), pack_visits(visits)
    assert len(data) <= 16 * len(samples)
    assert len(packed) <= 48 * len(samples)
    assert to_block((7, 3, warmups, len(samples), data, packed)) == Block(7, 3, tuple(samples), warmups, visits)
    assert to_block((7, 3, warmups, len(samples), data, None)) == Block(7, 3, tuple(samples), warmups)


TAKEN = block(0, 0, n=12)
SAMPLES, VISITS = pack_samples(TAKEN.samples), pack_visits(TAKEN.visits)
BOMB = zlib.compress(bytes(1 << 24))


@pytest.mark.parametrize(
    "row",
    [
        (11, SAMPLES, None),  # no fewer samples, and no more
        (13, SAMPLES, None),
        (4, BOMB, None),
        (4, b"no deflate", None),
        (-1, b"", None),
        (10**9, b"", None),
        ("12", SAMPLES, None),
        (12, SAMPLES, pack_visits(TAKEN.visits[1:])),
        (12, SAMPLES, pack_visits((*TAKEN.visits, TAKEN.visits[0]))),
        (12, SAMPLES, VISITS[:-7]),
        (12, SAMPLES, BOMB),
        (12, SAMPLES, b""),
        (12, SAMPLES, SAMPLES),
    ],
    ids=lambda row: f"{row[0]} samples, {len(row[1])} bytes, visits {row[2] if row[2] is None else len(row[2])}",
)
def test_a_damaged_block_is_an_error_and_never_other_samples(row):
    assert to_block((0, 0, 3, 12, SAMPLES, VISITS)) == TAKEN
    with pytest.raises((TypeError, ValueError), match="stored block"):  # ``Reader.reading`` names the database
        to_block((0, 0, 3, *row))


def test_an_item_is_open_once_for_each_variant_and_conditions(bench):
    for changes in ({}, {"variant": "winograd"}, {"conditions": Conditions(threads=2)}):
        bench.begin(bench.measurement("a", **changes))
        with pytest.raises(StoreError, match="is open already as measurement"):
            bench.begin(bench.measurement("a", **changes))


def opened(bench, name):
    made = bench.measurement(name)
    return made, OpenedMeasurement(made.id, made.run, made.identity, made.unroll)


def test_a_session_opens_items_and_adds_to_those_that_are_open(bench, block):
    (old, first), (new, second) = opened(bench, "a"), opened(bench, "b")
    bench.store.add_session([first], [(old.id, block(0, 0))])
    bench.store.add_session([second], [(old.id, block(0, 1)), (new.id, block(0, 1))])
    bench.store.add_session([], [])
    assert bench.store.blocks_of([old.id, new.id]) == {old.id: [block(0, 0), block(0, 1)], new.id: [block(0, 1)]}
    left = bench.store.left_open(bench.system, bench.stack, bench.conditions)
    assert {(entry.identity.key, entry.run, entry.process, entry.protocol) for entry in left} == {
        (old.key, bench.run.id, 0, PROTOCOL),
        (new.key, bench.run.id, 0, PROTOCOL),
    }
    bench.store.finish(old, new)
    assert bench.store.measurements() == sorted((old, new), key=lambda m: m.key)


def test_a_session_is_stored_as_a_whole_or_not_at_all(bench, block):
    (old, first), (new, second) = opened(bench, "a"), opened(bench, "b")
    bench.store.add_session([first], [(old.id, block(0, 0))])
    unknown = dataclasses.replace(second, run=str(uuid.uuid4()))
    twice, nobody, key = dataclasses.replace(second, id=str(uuid.uuid4())), str(uuid.uuid4()), second.identity.key[:12]
    again = dataclasses.replace(first, id=str(uuid.uuid4()))
    wrong = (
        (
            [second],
            [(new.id, block(0, 0)), (old.id, block(0, 0))],
            f"round 0 of measurement {old.id} is stored already",
        ),
        ([second], [(new.id, block(0, 0)), (new.id, block(0, 0))], f"round 0 of measurement {new.id} is given twice"),
        ([second], [(new.id, block(0, 0)), (nobody, block(0, 0))], f"{nobody}, which was never begun"),
        ([second, again], [(new.id, block(0, 0))], f"is open already as measurement {old.id}"),
        ([second, twice], [(new.id, block(0, 0))], f"brick {key} is begun twice"),
        ([unknown], [(new.id, block(0, 0))], f"run {unknown.run} of brick {key} is not stored"),
    )
    for begun, taken, why in wrong:
        with pytest.raises(StoreError, match=f"a session cannot be stored in .*{why}"):
            bench.store.add_session(begun, taken)
        counts = bench.store.info()["counts"]
        assert (counts["open"], counts["blocks"]) == (1, 1)
    bench.store.add_session([second], [(new.id, block(0, 0))])


def test_a_failure_takes_the_place_of_an_open_item_in_one_commit(bench, block):
    made = bench.measurement("a")
    bench.begin(made)
    bench.store.add_session((), [(made.id, block(0, 0))])
    unknown = dataclasses.replace(bench.failure("a"), run="no such run")

    with pytest.raises(StoreError):
        bench.store.add_failure(unknown, instead_of=made.id)

    assert len(bench.store.blocks(made.id)) == 1  # neither half was committed
    assert bench.store.failures() == []
    bench.store.add_failure(bench.failure("a"), instead_of=made.id)
    assert bench.store.blocks(made.id) == []
    assert len(bench.store.failures()) == 1


def test_discarding_drops_open_items_only(bench, block):
    made = bench.measurement("a")
    bench.begin(made)
    bench.store.add_session((), [(made.id, block(0, 0))])
    bench.store.discard(made.id)
    assert bench.store.blocks(made.id) == []
    finished = bench.measure("a")
    with pytest.raises(StoreError, match="no open measurement"):
        bench.store.discard(finished.id)
    assert len(bench.store.blocks(finished.id)) == 2


def test_finishing_wants_open_items_of_the_same_identity_and_closes_all_or_none(bench):
    made, other = bench.measurement("a"), bench.measurement("b")
    bench.begin(made)
    for wrong in ((made, other), (changed(made, key="f" * 64),)):
        with pytest.raises(StoreError, match="no open measurement"):
            bench.store.finish(*wrong)
    assert bench.store.measurements() == []
    bench.begin(other)
    bench.store.finish(made, other)
    assert len(bench.store.measurements()) == 2
    with pytest.raises(StoreError, match="no open measurement"):
        bench.store.finish(made)
    bench.store.finish()


def test_what_is_written_for_now_is_seen_until_it_is_undone(bench):
    kept, closed = bench.measure("a"), bench.measurement("b")
    bench.begin(closed)
    with bench.store.undone():
        bench.store.finish(closed)
        assert {measured.key for measured in bench.store.measurements()} == {kept.key, closed.key}
    assert bench.store.measurements() == [kept]

    with pytest.raises(ZeroDivisionError), bench.store.undone():  # noqa: PT012  # an error undoes it, too
        bench.store.finish(closed)
        raise ZeroDivisionError
    bench.store.finish(closed)  # it is still open
    assert len(bench.store.measurements()) == 2


def test_what_a_measurement_refers_to_must_be_stored(bench):
    with pytest.raises(StoreError, match="put_system"):
        bench.begin(bench.measurement("a", stack="0" * 64))
    with pytest.raises(StoreError, match="is not stored"):
        bench.begin(bench.measurement("a", run=str(uuid.uuid4())))


def test_latest_is_the_newest_finished_one_of_each_identity(bench):
    bench.measure("a", 900.0)
    newest = bench.measure("a", 1100.0)
    winograd = bench.measure("a", 500.0, variant="winograd")
    bench.begin(bench.measurement("a"))
    assert bench.store.measurements() == [newest]
    assert bench.store.measurements(variant=None) == [newest, winograd]
    assert [m.summary.median_ns for m in bench.store.measurements(latest=False)] == [900.0, 1100.0]


def test_filters(bench):
    other = Stack("openvino", "cpu", (("openvino", "2026.1"),))
    bench.store.put_stack(other)
    a = bench.measure("a")
    b = bench.measure("b", conditions=Conditions(threads=4, cache="cold", dtype="float16"))
    c = bench.measure("a", stack=other.key)
    model = bench.measure("a", subject=Subject.MODEL)
    ask = bench.store.measurements
    assert {m.id for m in ask()} == {a.id, b.id, c.id, model.id}
    assert ask(subject=Subject.MODEL) == [model]
    assert {m.id for m in ask(keys=[a.key])} == {a.id, c.id, model.id}
    assert ask(keys=[]) == []
    assert ask(threads=4) == ask(cache="cold") == ask(dtype="float16") == ask(conditions=b.conditions) == [b]
    assert ask(backend="openvino") == ask(stack=other.key) == [c]
    assert ask(device="cuda") == ask(system="0" * 64) == []
    assert bench.store.measured_keys(bench.system, bench.stack, a.conditions, Subject.BRICK) == {a.key}
    assert [(one.stack, one.conditions.threads, one.count) for one in bench.store.combinations(Subject.BRICK)] == [
        (bench.stack, 1, 1),
        (bench.stack, 4, 1),
        (other.key, 1, 1),
    ]
    assert [one.stack for one in bench.store.combinations(Subject.BRICK, [a.key])] == [bench.stack, other.key]
    assert bench.store.combinations(Subject.BRICK, ["0" * 64]) == []
    (one,) = bench.store.combinations(Subject.BRICK, among=Filter(backend="openvino"))
    assert (one.stack, one.count) == (other.key, 1)


def test_more_keys_than_one_statement_takes(bench, key_of):
    made = [bench.measurement(i, float(i + 1)) for i in range(1234)]
    assert bench.store.add((m, ()) for m in made) == 1234
    found = bench.store.measurements(keys=[key_of(i) for i in range(5000)])
    assert found == sorted(made, key=lambda m: m.key)
    found = bench.store.contenders(keys={m.key for m in made}, device="cpu", conditions=bench.conditions)
    assert {key: one.latency_ns for key, (one,) in found.items()} == {m.key: m.latency_ns for m in made}


def test_blocks_of_thousands_come_in_one_answer(bench, block):
    made = {m.id: [block(0, 0), block(1, 0)] for m in (bench.measurement(i) for i in range(1234))}
    bench.store.add((bench.measurement(i, id=id_), taken) for i, (id_, taken) in enumerate(made.items()))
    assert bench.store.blocks_of([*made, *(str(uuid.uuid4()) for _ in range(500))]) == made
    assert bench.store.blocks_of([]) == {}


def test_fastest_looks_over_stacks_and_variants_at_the_latest(bench):
    other, gpu = Stack("openvino", "cpu", ()), Stack("onnxruntime", "cuda", ())
    bench.store.put_stack(other)
    bench.store.put_stack(gpu)
    bench.measure("a", 10.0)  # outdated by the next
    bench.measure("a", 90.0)
    bench.measure("a", 80.0, stack=other.key)
    bench.measure("a", 70.0, stack=other.key, variant="winograd")
    bench.measure("a", 1.0, stack=gpu.key)
    bench.measure("a", 2.0, conditions=Conditions(threads=2))
    key = bench.measurement("a").key
    wanted = {"keys": [key], "system": bench.system, "device": "cpu", "conditions": bench.conditions, "variant": None}
    found = bench.store.contenders(subject=Subject.BRICK, **wanted)
    assert [(one.stack, one.variant, one.latency_ns) for (one,) in found.values()] == [
        (other.key, "winograd", pytest.approx(70.7))
    ]
    several = bench.store.contenders(subject=Subject.BRICK, **wanted, reach=2.0, most=2)[key]
    assert [(one.stack, one.variant) for one in several] == [(other.key, "winograd"), (other.key, "")]
    found = bench.store.contenders(subject=Subject.BRICK, **wanted, without=[other.key])
    assert [(one.variant, one.latency_ns) for (one,) in found.values()] == [("", pytest.approx(90.9))]


def test_a_failure_is_reported_until_the_item_is_measured(bench):
    bench.store.add_failure(bench.failure("a", kind="timeout"))
    last = bench.failure("a")
    bench.store.add_failure(last)
    bench.store.add_failure(bench.failure("b"))
    assert bench.store.failures(keys=[last.key]) == [last]
    made = bench.measure("a")
    assert [f.key for f in bench.store.failures()] == [bench.failure("b").key]
    bench.store.add_failure(again := bench.failure("a"))
    assert bench.store.measurements() == [made]  # a later failure leaves it
    assert bench.store.failures(keys=[last.key]) == [again]


def test_runs_keep_their_provenance(bench):
    bench.store.end_run(bench.run.id, after={"load_1m": 0.4}, finished="2026-11-21T03:05:00Z")
    (run,) = bench.store.runs()
    assert run == dataclasses.replace(bench.run, after={"load_1m": 0.4}, finished="2026-11-21T03:05:00Z")
    with pytest.raises(StoreError, match="no run"):
        bench.store.end_run("nobody", after={}, finished="2026-11-21T03:05:00Z")


def test_info_counts(bench):
    bench.measure("a")
    bench.measure("a")
    bench.measure("m", subject=Subject.MODEL)
    bench.begin(bench.measurement("b"))
    bench.store.add_failure(bench.failure("c"))
    info = bench.store.info()
    assert info["counts"] == {
        "systems": 1, "stacks": 1, "runs": 1, "bricks": 1, "models": 1, "measurements": 3, "open": 1, "blocks": 6,
        "failures": 1, "kernel_views": 0, "proofs": 0,
    }  # fmt: skip
    assert info["database"] == str(bench.store.place)
    assert info["bytes"] is None if isinstance(bench.path, str) else info["bytes"] > 0


@pytest.mark.sqlite
def test_a_system_that_was_edited_is_refused(bench):
    with sqlite3.connect(bench.path) as raw:
        raw.execute("UPDATE system SET cpu = 'Faster'")
    raw.close()
    with pytest.raises(StoreError, match="edited"):
        bench.store.systems()


_NAMES = st.sampled_from(["a", "b", "c"])
_STEP = st.one_of(
    st.tuples(st.just("begin"), _NAMES),
    st.tuples(st.just("block"), _NAMES, st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.just("finish"), _NAMES),
    st.tuples(st.just("discard"), _NAMES),
    st.tuples(st.just("reopen")),
)


@pytest.mark.sqlite  # dozens of databases: a server takes too long to make them
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEP, max_size=25))
def test_any_order_of_calls_matches_a_plain_model(tmp_path_factory, furnish, block, key_of, steps):
    """Against dictionaries of open items, their blocks and finished measurements: refused where the model refuses."""
    bench = furnish(tmp_path_factory.mktemp("any") / "a.db")
    opened: dict[str, object] = {}
    blocks: dict[str, dict[tuple[int, int], object]] = {}
    finished: dict[str, object] = {}
    for kind, *given_ in steps:
        if kind == "reopen":
            bench.store.close()
            bench.store = Store.open(bench.path)
            continue
        name = given_[0]
        item = opened.get(name)
        if kind == "begin":
            made = bench.measurement(name, median_ns=float(len(blocks) + 1))
            if item is None:
                bench.begin(made)
                opened[name], blocks[made.id] = made, {}
            else:
                with pytest.raises(StoreError):
                    bench.begin(made)
        elif item is None:
            continue
        elif kind == "block":
            at = (given_[1], given_[2])
            if at in blocks[item.id]:
                with pytest.raises(StoreError):
                    bench.store.add_session((), [(item.id, block(*at))])
            else:
                bench.store.add_session((), [(item.id, block(*at))])
                blocks[item.id][at] = block(*at)
        elif kind == "finish":
            bench.store.finish(item)
            finished[name] = opened.pop(name)
        else:
            bench.store.discard(item.id)
            blocks[opened.pop(name).id] = {}
    assert {m.key: m for m in bench.store.measurements()} == {key_of(name): m for name, m in finished.items()}
    for id_, expected in blocks.items():
        assert bench.store.blocks(id_) == [expected[at] for at in sorted(expected)]
    for name in "abc":
        identity = Identity(Subject.BRICK, key_of(name), bench.system, bench.stack, bench.conditions)
        made = opened.get(name)
        left = None if made is None else (made.id, made.unroll, bench.store.blocks(made.id))
        assert bench.store.open_item(identity) == left
    bench.store.close()


@pytest.mark.parametrize("value", [b"\xd5\x00", "x", "[1", b""])
def test_a_value_that_is_none_of_ours_is_an_error_of_the_store(value, tmp_path):
    path = tmp_path / "kept.db"
    with Store.open(path) as store:
        store.put_stack(Stack("onnxruntime", "cpu", (("onnxruntime", "1.0"),)))
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE stack SET versions = ?", (value,))
        database.commit()
    with Store.open(path) as store, pytest.raises(StoreError, match=r"did not write|is damaged"):
        store.stacks()

"""Rotations: every network once per pass, net of its head, at a given reuse distance."""

import itertools

import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, Subject
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.item import Item
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.sampling.schedule import fitting, warmups_of
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.rotation import Rotation
from dlbricks.generator.worker.execution.rotor import Rotor, head_share
from dlbricks.generator.worker.messages.protocol import Prepare, Rotate
from dlbricks.models import find_models

MIB = 1 << 20


class _Recorder:
    """An executable that notes that it ran."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def run(self):
        self.log.append(self.name)

    def synchronize(self):
        pass

    def close(self):
        self.log.append(f"{self.name} closed")


def _rotors(count, log, touched=MIB):
    return [
        Rotor(_Recorder(f"head{n}", log), _Recorder(f"tail{n}", log), copies=4, touched_bytes=touched, held_bytes=0)
        for n in range(count)
    ]


def test_every_pass_visits_each_network_once_in_another_order():
    log: list[str] = []

    Rotation().turn(_rotors(6, log), distance=4 * MIB, passes=5, seed=3)

    tails = [name for name in log if name.startswith("tail")]
    orders = [tuple(tails[start : start + 6]) for start in range(0, 30, 6)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len(set(orders)) > 1
    assert all(before == after.replace("tail", "head") for before, after in itertools.pairwise(log) if "tail" in after)


def test_warm_up_passes_do_not_count():
    log: list[str] = []
    rotors = _rotors(3, log)

    Rotation().turn(rotors, distance=MIB, passes=4, warmups=2)

    assert [len(rotor.samples()) for rotor in rotors] == [4, 4, 4]
    assert sum(name.startswith("tail") for name in log) == 3 * 6


def test_a_sample_is_net_of_the_median_head_and_the_offset():
    rotor = Rotor(None, None, copies=4, touched_bytes=0, held_bytes=0, offset_ns=7)  # type: ignore[arg-type]
    rotor.heads_ns[:] = [100, 900, 120]
    rotor.tails_ns[:] = [527, 90]

    assert rotor.samples() == ((400, 1), (-37, 1))


def test_heads_of_long_bricks_run_less_often():
    assert [head_share(tail) for tail in (1e5, 5e6, 5e7)] == [1, 1 / 4, 1 / 8]


def _item(key, distance, touched=0):
    item = Item(Subject.BRICK, key, key, path=None, distance=distance)  # type: ignore[arg-type]
    item.touched_bytes = touched
    return item


def test_a_rotation_holds_networks_of_one_distance_until_they_touch_that_much():
    from collections import deque

    queue = deque([_item("a", 8 * MIB), _item("m", 0), _item("b", 4 * MIB), _item("c", 8 * MIB)])
    resident = [queue.popleft()]

    assert fitting(resident, queue)
    assert queue[0].key == "c", "the next one of the same distance comes to the front"
    resident.append(queue.popleft())
    assert not fitting(resident, queue)
    assert [item.key for item in queue] == ["m", "b"]

    full = [_item(str(n), 8 * MIB, touched=3 * MIB) for n in range(3)]
    assert not fitting(full, deque([_item("d", 8 * MIB)]))


def test_short_passes_are_warmed_up_more():
    short, long = _item("a", MIB), _item("b", MIB)
    short.run_ns, long.run_ns = 1_000, 200_000_000

    assert warmups_of([short], begun=False) > warmups_of([long], begun=False) >= 1
    assert warmups_of([long], begun=True) == 0


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rotation")
    generate(find_models(["squeezenet"]), granularity=1, out=folder / "suite", graph="runtime")
    return Suite.open(folder / "suite")


def test_a_worker_rotates_what_it_prepared(suite):
    keys = suite.keys[:4]
    worker = Worker.start("onnxruntime", rotating=True)
    try:
        for key in keys:
            reply = worker.prepare(
                Prepare(id=key, path=str(suite.brick_path(key).resolve()), synthetic=True, as_is=True, distance=8 * MIB)
            )
            assert reply.unroll >= 1
            assert reply.touched_bytes > 0
        answer = worker.rotate(Rotate(tuple(keys), distance=8 * MIB, passes=3, warmups=1), timeout_s=60)
        assert [len(samples) for samples in answer.samples] == [3] * 4
        with pytest.raises(UsageError):
            worker.rotate(Rotate(("nothing",), distance=8 * MIB, passes=1), timeout_s=60)
    finally:
        worker.close()


def test_a_worker_that_was_not_greeted_for_it_rotates_nothing(suite):
    worker = Worker.start("onnxruntime")
    try:
        with pytest.raises(UsageError):
            worker.prepare(
                Prepare(id="a", path=str(suite.brick_path(suite.keys[0]).resolve()), synthetic=True, distance=MIB)
            )
    finally:
        worker.close()


def test_a_run_in_cache_mode_model_stores_levels_and_the_model_beside_them(suite, tmp_path):
    with Store.open(tmp_path / "db") as store:
        report = run(
            suite, store=store, cache="model", models=find_models(["squeezenet"]), rounds=1, item_budget_s=0.001
        )
        bricks = store.measurements(subject=Subject.BRICK)
        models = store.measurements(subject=Subject.MODEL)
        probes = store.measurements(subject=Subject.REFERENCE)
        again = run(suite, store=store, cache="model")

    assert (report.failed, report.remaining) == (0, 0)
    assert {found.key for found in bricks} == set(suite.keys)
    assert {found.conditions.cache for found in bricks} == {"8MiB"}
    assert [found.conditions.cache for found in models] == ["model"]
    assert {found.conditions.cache for found in probes} == {"model", "hot", "8MiB"}
    assert (again.measured, again.reused) == (0, len(suite.keys))


def test_an_executed_graph_stays_on_its_stack(suite, tmp_path):
    with Store.open(tmp_path / "db") as store, pytest.raises(UsageError, match="another stack"):
        run(suite, store=store, options={"optimization": "basic"})

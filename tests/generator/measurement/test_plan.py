"""What is visited in turn: every item somewhere, a model beside its bricks, packs as large as their class."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from dlbricks.bricks.graph.footprint import REPEAT_LEVELS, REUSE_LEVELS, STREAM_LEVEL, level_name
from dlbricks.db.values import Conditions, Identity, Measurement, Runtime, Subject
from dlbricks.generator.measurement import pace
from dlbricks.generator.measurement import plan as module
from dlbricks.generator.measurement.plan import (
    Group,
    MeasurementPlan,
    MeasurementTask,
    Membership,
    TaskMember,
    plan_groups,
    single,
)
from dlbricks.generator.worker.messages import Place
from dlbricks.models.runnable import Runnable
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
SMALL, *_, LARGE = REUSE_LEVELS
MIDDLE = REUSE_LEVELS[len(REUSE_LEVELS) // 2]
HERE = Place()
ON_GPU = Place(Runtime("onnxruntime", "cuda"))
"""Where a group has one model."""


def member(subject: Subject, key: str, cache: str, **more: object) -> TaskMember:
    return TaskMember(Identity(subject, key, "s", "t", Conditions(1, cache)), key, Runnable(Path(key), True), **more)


def brick(key: str, weight: int = MIB, *, footprint: int = SMALL, live: int = 1000, **more: object) -> TaskMember:
    cache = level_name(footprint) if footprint else "hot"
    sizes = {"weight_bytes": weight, "read_bytes": weight, "live_bytes": live}
    return member(Subject.BRICK, key, cache, footprint=footprint, **{**sizes, **more})


def model(key: str, footprint: int = 10 * MIB, size: int = 20 * MIB) -> TaskMember:
    return member(Subject.MODEL, key, "model", weight_bytes=size // 2, footprint_bytes=footprint)


def grouped(
    items: Sequence[TaskMember],
    models: Sequence[TaskMember],
    holds: Mapping[str, set[str]],
    *,
    memory_bytes: int,
    place: Place = HERE,
) -> list[Part]:
    membership = Membership({key: frozenset(keys) for key, keys in holds.items()})
    return [Part(group) for group in plan_groups(items, models, membership, place, memory_bytes=memory_bytes)]


class Part:
    """A group, its bricks and its models."""

    def __init__(self, group: Group) -> None:
        unique = {one.id: one for one in group.members}
        self.models = [one for one in unique.values() if one.id in group.anchors]
        self.items = [one for one in unique.values() if one.id not in group.anchors]
        self.packs = [task for task in group.tasks if task.packed]
        self.size_bytes = sum(task.size_bytes for task in group.tasks)


def packs_of(items: Sequence[TaskMember]) -> list[MeasurementTask]:
    return [pack for part in grouped(items, [], {}, memory_bytes=1 << 60) for pack in part.packs]


@pytest.mark.parametrize("read", [100, 10, 0])
def test_a_runtime_copies_weights_also_of_a_table_of_which_little_is_read(read):
    assert brick("b", 100, read_bytes=read, live=5).size_bytes == 205


weights = st.sampled_from([0, 1, 1000, MIB // 3, MIB, 5 * MIB, 9 * MIB, 40 * MIB])


@st.composite
def bricks(draw: st.DrawFn) -> list[TaskMember]:
    """Bricks of several classes, some of them in more than one."""
    found = []
    for number in range(draw(st.integers(1, 25))):
        classes = draw(st.sets(st.sampled_from(REUSE_LEVELS), min_size=1))
        weight, live = draw(weights), draw(st.integers(1, 4 * MIB))
        found += [brick(f"b{number}", weight, footprint=one, live=live) for one in sorted(classes)]
    return found


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[TaskMember], list[TaskMember], dict[str, set[str]]]:
    """Bricks, models, and what those hold of which it is known."""
    items = draw(bricks())
    keys = sorted({item.key for item in items})
    models = [model(f"m{number}", draw(st.integers(1, 300 * MIB))) for number in range(draw(st.integers(0, 12)))]
    holds = {one.key: draw(st.sets(st.sampled_from(keys), min_size=1)) for one in models if draw(st.booleans())}
    return items, models, holds


def able(items: Sequence[TaskMember], keys: set[str]) -> list[int]:
    """The classes that have all of some bricks."""
    return [one for one in REUSE_LEVELS if keys <= {item.key for item in items if item.footprint == one}]


@given(situations(), st.sampled_from([1, 30 * MIB, 200 * MIB, 1 << 40]))
def test_every_item_is_in_a_group_and_every_model_in_one(situation, memory_bytes):
    items, models, holds = situation

    groups = grouped(items, models, holds, memory_bytes=memory_bytes)

    assert {item.id for group in groups for item in group.items} == {item.id for item in items}
    assert sorted(one.key for group in groups for one in group.models) == sorted(one.key for one in models)
    assert all(len({item.id for item in group.items}) == len(group.items) for group in groups)
    assert all(len([*group.items, *group.models]) for group in groups)


@given(situations(), st.sampled_from([1, 30 * MIB, 1 << 40]))
def test_a_model_stands_beside_all_its_bricks_of_one_class(situation, memory_bytes):
    items, models, holds = situation

    for group in grouped(items, models, holds, memory_bytes=memory_bytes):
        for one in group.models:
            if one.key in holds and able(items, holds[one.key]):
                beside = [
                    {item.key for item in group.items if item.footprint == footprint} for footprint in REUSE_LEVELS
                ]
                assert any(holds[one.key] <= keys for keys in beside)


@given(situations(), st.sampled_from([30 * MIB, 200 * MIB]))
def test_groups_keep_within_the_memory_unless_a_model_or_a_pack_alone_does_not(situation, memory_bytes):
    items, models, holds = situation

    for group in grouped(items, models, holds, memory_bytes=memory_bytes):
        assert group.size_bytes <= memory_bytes or len(group.models) == 1 or len([*group.packs, *group.models]) == 1


def test_bricks_that_a_pack_leaves_cold_run_once_more_before():
    """Activations that are larger than all just before, and few bytes between passes that come from memory."""
    sizes = {"a": 1 << 10, "b": 1 << 20, "c": 9 << 20, "d": 9 << 20}
    small, large = (
        [brick(name, 0, footprint=one, live=live) for name, live in sizes.items()] for one in (MIDDLE, LARGE)
    )

    def twice(items: Sequence[TaskMember], session: int) -> list[tuple[str, str]]:
        (pack,) = packs_of(items)
        return [(entry.id.split(":")[1], entry.twice) for entry in pack.load(0, session=session).members]

    rising, falling = [], []
    for session in range(20):
        found = twice(small, session)
        (rising if found[0][0] == "a" else falling).append([how for _, how in found])
    assert {*map(tuple, rising)} == {("", "alone", "alone", "")}
    assert {*map(tuple, falling)} == {("alone", "", "", "")}
    assert dict(twice(large, 0)) == {"a": "together", "b": "alone", "c": "alone", "d": "alone"}


def test_activations_without_weights_run_often_before_in_a_pack_that_streams():
    items = [
        brick("moved", 0, footprint=STREAM_LEVEL, live=4 << 20),
        brick("weighted", 1 << 20, footprint=STREAM_LEVEL, live=4 << 20),
        brick("short", 0, footprint=STREAM_LEVEL, live=1 << 19),
    ]

    (pack,) = packs_of(items)

    found = {entry.id.split(":")[1]: entry.twice for entry in pack.load(0).members}
    assert found == {"moved": "often", "weighted": "alone", "short": "together"}


def test_activations_run_twice_only_where_cold_ones_would_be_noticed():
    """Not beside much arithmetic or many weights; nor those that no cache holds, unless all before are smaller."""
    items = [
        brick("moved", 0, footprint=LARGE, live=4 << 20),
        brick("computed", 0, footprint=LARGE, live=4 << 20, macs=10**9),
        brick("read", 60 * MIB, footprint=LARGE, live=MIB),
        brick("one", 0, footprint=LARGE, live=40 << 20),
        brick("other", 0, footprint=LARGE, live=40 << 20),
    ]

    (pack,) = packs_of(items)
    found = {entry.id.split(":")[1]: entry.twice for entry in pack.load(0).members}

    larger = sorted([found.pop("one"), found.pop("other")])
    assert found == {"moved": "alone", "computed": "", "read": ""}
    assert larger == ["", "alone"]
    (alone,) = packs_of([brick("huge", 0, footprint=LARGE, live=200 << 20)])
    assert [entry.twice for entry in alone.load(0).members] == [""]


def test_each_copy_of_a_brick_has_weights_of_its_own_in_memory():
    (pack,) = packs_of([brick("a", 2 * MIB, live=5)])

    (copies,) = pack.copies.values()
    assert copies > 2
    assert pack.size_bytes == copies * 2 * 2 * MIB + 5


def test_each_copy_whose_inputs_or_outputs_stay_has_memory_of_its_own_for_them():
    item = brick("a", 2 * MIB, live=5)

    (pack,) = packs_of([replace(item, identity=replace(item.identity, variant="kept"))])

    (copies,) = pack.copies.values()
    assert copies > 2
    assert pack.size_bytes == copies * (2 * 2 * MIB + 5)


def test_a_model_is_visited_beside_the_bricks_of_the_class_that_is_nearest_to_its_own():
    items = [brick("a", footprint=one) for one in REUSE_LEVELS]

    for own, nearest in ((MIB, 8), (30 * MIB, 32), (60 * MIB, 64), (100 * MIB, 96), (1 << 40, 128)):
        (group,) = [one for one in grouped(items, [model("m", own)], {"m": {"a"}}, memory_bytes=1 << 40) if one.models]
        assert {item.footprint for item in group.items} == {nearest * MIB}


def test_bricks_of_iterations_are_visited_beside_their_model_and_never_decide_its_class():
    _, near, *_ = REPEAT_LEVELS
    items = [brick("a"), brick("b"), brick("a", MIB // 4, footprint=near), brick("other", footprint=near)]

    groups = grouped(items, [model("m", MIB // 2)], {"m": {"a", "b"}}, memory_bytes=1 << 40)

    (group,) = [one for one in groups if one.models]
    assert {(item.key, item.footprint) for item in group.items} == {("a", SMALL), ("b", SMALL), ("a", near)}
    assert {item.key for one in groups if one is not group for item in one.items} == {"other"}
    assert {pack.footprint for pack in group.packs} == {SMALL, near}
    (warm,) = [pack for pack in group.packs if pack.footprint == near]
    assert warm.footprint_bytes < 2 * near


def test_models_of_the_same_bricks_share_a_group():
    items = [brick(f"{family}{number}", 3 * MIB) for family in "ab" for number in range(2)]
    models = [model(f"{family}{number}") for number in range(3) for family in "ab"]
    holds = {one.key: {f"{one.key[0]}0", f"{one.key[0]}1"} for one in models}

    groups = grouped(items, models, holds, memory_bytes=1 << 40)

    assert sorted(one.key[0] for one in groups[0].models) == ["a", "a", "a", "b"]  # 6 MiB, and then 12
    assert len(groups[0].items) == 4


@given(situations(), st.sampled_from([1, 30 * MIB, 1 << 40]))
def test_where_a_group_has_one_model_it_has_the_bricks_of_that_one_and_no_other(situation, memory_bytes):
    items, models, holds = situation

    groups = grouped(items, models, holds, memory_bytes=memory_bytes, place=ON_GPU)

    assert all(len(group.models) <= 1 for group in groups)
    assert {item.id for group in groups for item in group.items} == {item.id for item in items}
    for one in models:
        (group,) = [group for group in groups if one in group.models]
        if one.key in holds and able(items, holds[one.key]):
            assert sorted(item.key for item in group.items) == sorted(holds[one.key])
            assert len({item.footprint for item in group.items}) == 1


def test_a_brick_of_two_models_is_visited_beside_both_where_each_has_a_group_of_its_own():
    shared, first, second, other = (brick(key) for key in "abcd")
    holds = {"m0": {"a", "b"}, "m1": {"a", "c"}}

    groups = grouped(
        [shared, first, second, other], [model("m0"), model("m1")], holds, memory_bytes=1 << 40, place=ON_GPU
    )

    assert {(tuple(one.key for one in group.models), tuple(item.key for item in group.items)) for group in groups} == {
        (("m0",), ("a", "b")), (("m1",), ("a", "c")), ((), ("d",)),
    }  # fmt: skip
    assert [shared in group.items for group in groups] == [True, True, False]


@given(bricks(), st.booleans())
def test_packs_hold_each_brick_once_and_are_of_one_kind(items, variants):
    if variants:
        items += [replace(item, identity=item.part("basic")) for item in items]

    packs = packs_of(items)

    assert sorted(item.id for plan in packs for item in plan.members) == sorted(item.id for item in items)
    assert len({plan.id for plan in packs}) == len(packs)
    for plan in packs:
        assert len({(item.footprint, item.identity.variant, item.as_is) for item in plan.members}) == 1


@given(bricks())
def test_packs_are_about_as_large_as_their_class(items):
    for plan in packs_of(items):
        (footprint,) = {item.footprint for item in plan.members}
        largest = max(item.read_bytes for item in plan.members)
        live = max(item.live_bytes for item in plan.members)
        assert plan.footprint_bytes <= max(1.5 * footprint, largest) + live
        copied = [item for item in plan.members if item.read_bytes >= footprint / 1000]
        most = max(8, 300 // len(plan.members)) if footprint >= 64 * MIB else 8
        full = all(plan.copies.get(item.id, 1) == (8 if item.live_bytes > item.read_bytes else most) for item in copied)
        assert plan.footprint_bytes >= 0.7 * footprint or full or (footprint >= 64 * MIB and largest > footprint / 2)
        assert all(count > 1 for count in plan.copies.values())


def test_a_small_pack_is_filled_with_its_largest_weights_and_a_full_one_is_not():
    small = [brick("a", 100 << 10), brick("b", 2 * MIB)]
    full = [brick(f"f{number}", 2 * MIB, footprint=MIDDLE) for number in range(16)]

    first, second = packs_of([*small, *full])

    assert first.copies.get(small[1].id, 1) > 1
    assert first.footprint_bytes >= 0.7 * SMALL
    assert second.copies == {}


def test_long_computations_and_bricks_of_few_weights_are_not_copied():
    short, long, few = brick("a", MIB), brick("b", MIB, macs=4 * 10**9), brick("c", 1600)

    (filled,) = packs_of([short, long, few])

    assert {*filled.copies} == {short.id}


def pack(*members: TaskMember) -> MeasurementTask:
    return MeasurementTask("p", HERE, members, packed=True)


def plan_of(count: int) -> MeasurementTask:
    return pack(*(brick(f"b{number}", live=1 << number) for number in range(count)))


@given(st.integers(1, 24), st.integers(0, 20))
def test_orders_are_by_size_with_a_little_chance_and_the_same_for_the_same_seed(count, seed):
    plan = plan_of(count)

    order = plan.ordered(f"{seed}")

    assert sorted(item.key for item in order) == sorted(item.key for item in plan.members)
    assert [item.id for item in order] == [item.id for item in plan.ordered(f"{seed}")]
    if order[0].live_bytes > order[-1].live_bytes:
        order.reverse()
    for earlier, later in itertools.pairwise(order):
        assert earlier.live_bytes <= 2.3 * later.live_bytes + 2  # the jitter is 0.4 to each side, as a logarithm


def test_orders_differ_from_session_to_session_and_go_both_ways():
    plan = pack(*(brick(f"b{number}", live=1000 + number) for number in range(12)))
    wide = plan_of(20)

    orders = {tuple(item.key for item in plan.ordered(f"0:0:{session}")) for session in range(8)}
    first = {wide.ordered(f"0:0:{session}")[0].live_bytes < 1 << 10 for session in range(8)}

    assert len(orders) == 8
    assert first == {True, False}


def forecast(*members: TaskMember, visits: int = 24, known: Mapping[str, Measurement] | None = None) -> float:
    tasks = tuple(pack(one) if one.footprint else single(one, HERE) for one in members)
    return MeasurementPlan((Group(tasks),) if tasks else (), processes=2, sessions=2).forecast_s(visits, known or {})


def test_a_forecast_grows_with_the_work_and_with_the_visits():
    light, heavy = (brick("k", footprint=0, macs=macs) for macs in (None, 10**10))

    assert forecast() == 0
    assert 0 < forecast(light) < forecast(heavy) < forecast(heavy, heavy)
    assert forecast(heavy, visits=12) < forecast(heavy)
    assert forecast(brick("k", macs=10**9)) > 0


def test_a_forecast_counts_a_pack_by_its_passes_and_what_is_short_by_its_loops():
    """Many short bricks in a pack are one visit of some loops; each by itself is one."""
    members = [brick(f"k{number}", footprint=size, macs=10**6) for number in range(40) for size in (SMALL, 0)]
    visit_s = pace.LOOP_NS / 1e9

    def visited_s(*tasks: MeasurementTask) -> float:
        plan = MeasurementPlan((Group(tasks),), 1, 1)
        return plan.forecast_s(100, {}) - plan.forecast_s(0, {})

    assert visited_s(pack(*members[::2])) < 100 * 7 * visit_s
    assert visited_s(*(single(one, HERE) for one in members[1::2])) >= 100 * 40 * visit_s


def test_a_forecast_counts_the_weights_of_each_session_and_what_calibrates_the_clock():
    small = forecast(brick("k", 0, macs=0))

    assert forecast(brick("k", 100 * MIB, macs=0)) - small == pytest.approx(4 * 100 * MIB * module._LOAD_S_PER_BYTE)
    clocked = forecast(brick("k", 0, macs=10**9), visits=0) - forecast(brick("k", 0, macs=0), visits=0)
    assert clocked == pytest.approx(2 * module._CLOCK_PASSES * 10**9 * module._NS_PER_MAC / 1e9)


def test_the_largest_task_of_a_group_counts_whatever_its_pace_but_not_on_a_gpu():
    computing = brick("k", 50 * MIB, footprint=0, macs=10**12)
    tasks = single(brick("small", footprint=0), HERE), single(computing, HERE), single(brick("g", 9**9), ON_GPU)

    assert Group(tasks).largest_bytes == 2 * 50 * MIB + 1000
    assert Group(tasks[2:]).largest_bytes == 0


def test_a_table_of_which_rows_are_read_fills_no_pack():
    table = brick("table", 100 * MIB, read_bytes=1 << 10)
    other = brick("a", 2 * MIB)

    (plan,) = packs_of([table, other])

    assert {*plan.copies} == {other.id}
    assert 0.7 * SMALL <= plan.footprint_bytes < 2 * SMALL


def test_memory_is_shared_in_turns_but_where_weights_evict_it_anyway():
    small, large = (pack(brick("b", footprint=footprint)) for footprint in (MIDDLE, LARGE))

    assert [small.shares_memory(session) for session in range(4)] == [True, False, True, False]
    assert [large.shares_memory(session) for session in range(4)] == [True] * 4


@given(st.integers(2, 30))
def test_halves_part_the_bricks(count):
    plan = plan_of(count)

    first, second = plan.halves()

    assert (*first.members, *second.members) == plan.members
    assert abs(len(first.members) - len(second.members)) <= 1
    assert len({plan.id, first.id, second.id}) == 3

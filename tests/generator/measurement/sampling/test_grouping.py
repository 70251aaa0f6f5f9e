"""What is visited in turn: every item somewhere, a model beside its bricks, packs as large as their class."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from dlbricks.bricks.graph.footprint import REPEAT_LEVELS, REUSE_LEVELS, level_name
from dlbricks.db.values import Subject
from dlbricks.generator.measurement.item import Item
from dlbricks.generator.measurement.sampling.grouping import PackPlan, grouped, packs_of
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
SMALL, MIDDLE, LARGE = REUSE_LEVELS


def brick(key: str, weight: int = MIB, *, footprint: int = SMALL, live: int = 1000, **more: object) -> Item:
    return Item(
        Subject.BRICK, key, key, Path(key), weight_bytes=weight, read_bytes=weight, live_bytes=live,
        size_bytes=2 * weight + live, footprint=footprint, cache=level_name(footprint) if footprint else None, **more,
    )  # fmt: skip


def model(key: str, footprint: int = 10 * MIB, size: int = 20 * MIB) -> Item:
    return Item(Subject.MODEL, key, key, Path(key), size_bytes=size, footprint_bytes=footprint)


weights = st.sampled_from([0, 1, 1000, MIB // 3, MIB, 5 * MIB, 9 * MIB, 40 * MIB])


@st.composite
def bricks(draw: st.DrawFn) -> list[Item]:
    """Bricks of several classes, some of them in more than one."""
    found = []
    for number in range(draw(st.integers(1, 25))):
        classes = draw(st.sets(st.sampled_from(REUSE_LEVELS), min_size=1))
        weight, live = draw(weights), draw(st.integers(1, 4 * MIB))
        found += [brick(f"b{number}", weight, footprint=one, live=live) for one in sorted(classes)]
    return found


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Item], list[Item], dict[str, set[str]]]:
    """Bricks, models, and what those hold of which it is known."""
    items = draw(bricks())
    keys = sorted({item.key for item in items})
    models = [model(f"m{number}", draw(st.integers(1, 300 * MIB))) for number in range(draw(st.integers(0, 12)))]
    holds = {one.key: draw(st.sets(st.sampled_from(keys), min_size=1)) for one in models if draw(st.booleans())}
    return items, models, holds


def able(items: Sequence[Item], keys: set[str]) -> list[int]:
    """The classes that have all of some bricks."""
    return [one for one in REUSE_LEVELS if keys <= {item.key for item in items if item.footprint == one}]


@given(situations(), st.sampled_from([1, 30 * MIB, 200 * MIB, 1 << 40]))
def test_every_item_is_in_a_group_and_every_model_in_one(situation, memory_bytes):
    items, models, holds = situation

    groups = grouped(items, models, holds, memory_bytes=memory_bytes)

    assert {item.id for group in groups for item in group.items} == {item.id for item in items}
    assert sorted(one.key for group in groups for one in group.models) == sorted(one.key for one in models)
    assert all(len({item.id for item in group.items}) == len(group.items) for group in groups)
    assert all(group.count for group in groups)


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
def test_groups_keep_within_the_memory_unless_a_model_or_an_item_alone_does_not(situation, memory_bytes):
    items, models, holds = situation

    for group in grouped(items, models, holds, memory_bytes=memory_bytes):
        assert group.size_bytes <= memory_bytes or len(group.models) == 1 or group.count == 1


def test_a_model_is_visited_beside_the_bricks_of_the_class_that_is_nearest_to_its_own():
    items = [brick("a", footprint=one) for one in REUSE_LEVELS]

    for own, nearest in ((MIB, SMALL), (30 * MIB, MIDDLE), (100 * MIB, LARGE), (1 << 40, LARGE)):
        (group,) = [one for one in grouped(items, [model("m", own)], {"m": {"a"}}, memory_bytes=1 << 40) if one.models]
        assert {item.footprint for item in group.items} == {nearest}


def test_the_class_that_a_suite_notes_for_a_model_is_its_own():
    items = [brick("a", footprint=one) for one in REUSE_LEVELS]

    groups = grouped(items, [model("m", 30 * MIB)], {"m": {"a"}}, memory_bytes=1 << 40, levels={"m": LARGE})

    (group,) = [one for one in groups if one.models]
    assert {item.footprint for item in group.items} == {LARGE}


def test_bricks_of_iterations_are_visited_beside_their_model_and_never_decide_its_class():
    _, near, *_ = REPEAT_LEVELS
    items = [brick("a"), brick("b"), brick("a", MIB // 4, footprint=near), brick("other", footprint=near)]

    groups = grouped(items, [model("m", MIB // 2)], {"m": {"a", "b"}}, memory_bytes=1 << 40)

    (group,) = [one for one in groups if one.models]
    assert {(item.key, item.footprint) for item in group.items} == {("a", SMALL), ("b", SMALL), ("a", near)}
    assert {item.key for one in groups if one is not group for item in one.items} == {"other"}
    assert {pack.footprint for pack in packs_of(group.items, "p")} == {SMALL, near}
    (warm,) = [pack for pack in packs_of(group.items, "p") if pack.footprint == near]
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

    groups = grouped(items, models, holds, memory_bytes=memory_bytes, most_models=1)

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
        [shared, first, second, other], [model("m0"), model("m1")], holds, memory_bytes=1 << 40, most_models=1
    )

    assert {(tuple(one.key for one in group.models), tuple(item.key for item in group.items)) for group in groups} == {
        (("m0",), ("a", "b")), (("m1",), ("a", "c")), ((), ("d",)),
    }  # fmt: skip
    assert [shared in group.items for group in groups] == [True, True, False]


def test_models_of_which_nothing_is_known_are_spread():
    groups = grouped([brick("a")], [model(f"m{number}") for number in range(20)], {}, memory_bytes=1 << 40)

    assert sum(len(group.models) for group in groups) == 20
    assert max(len(group.models) for group in groups) <= 8


@given(bricks(), st.booleans())
def test_packs_hold_each_brick_once_and_are_of_one_kind(items, variants):
    if variants:
        items = [*items, *(item.in_variant("basic") for item in items)]

    packs = packs_of(items, "p")

    assert sorted(item.id for plan in packs for item in plan.items) == sorted(item.id for item in items)
    assert len({plan.id for plan in packs}) == len(packs)
    for plan in packs:
        assert len({(item.footprint, item.variant, item.as_is) for item in plan.items}) == 1


@given(bricks())
def test_packs_are_about_as_large_as_their_class(items):
    for plan in packs_of(items, "p"):
        (footprint,) = {item.footprint for item in plan.items}
        largest = max(item.read_bytes for item in plan.items)
        live = max(item.live_bytes for item in plan.items)
        assert plan.footprint_bytes <= max(1.6 * footprint, largest) + live
        copied = [item for item in plan.items if item.read_bytes]
        full = not copied or all(plan.copies.get(item.id) == 8 for item in copied)
        assert plan.footprint_bytes >= 0.7 * footprint or full
        assert all(count > 1 for count in plan.copies.values())


def test_a_small_pack_is_filled_with_its_largest_weights_and_a_full_one_is_not():
    small = [brick("a", 100 << 10), brick("b", 2 * MIB)]
    full = [brick(f"f{number}", 2 * MIB, footprint=MIDDLE) for number in range(16)]

    first, second = packs_of([*small, *full], "p")

    assert first.copies.get(small[1].id, 1) > 1
    assert first.footprint_bytes >= 0.7 * SMALL
    assert second.copies == {}


def test_a_table_of_which_rows_are_read_fills_no_pack():
    table = brick("table", 100 * MIB)
    table.read_bytes = 1 << 10

    other = brick("a", 2 * MIB)

    (plan,) = packs_of([table, other], "p")

    assert {*plan.copies} == {other.id}
    assert 0.7 * SMALL <= plan.footprint_bytes < 2 * SMALL


def plan_of(count: int) -> PackPlan:
    return PackPlan("p", [brick(f"b{number}", live=1 << number) for number in range(count)])


@given(st.integers(1, 24), st.integers(0, 20))
def test_orders_are_by_size_with_a_little_chance_and_the_same_for_the_same_seed(count, seed):
    plan = plan_of(count)

    order = plan.ordered(f"{seed}")

    assert sorted(item.key for item in order) == sorted(item.key for item in plan.items)
    assert [item.id for item in order] == [item.id for item in plan.ordered(f"{seed}")]
    if order[0].live_bytes > order[-1].live_bytes:
        order.reverse()
    for earlier, later in itertools.pairwise(order):
        assert earlier.live_bytes <= 2.3 * later.live_bytes + 2  # the jitter is 0.4 to each side, as a logarithm


def test_orders_differ_from_session_to_session_and_go_both_ways():
    plan = PackPlan("p", [brick(f"b{number}", live=1000 + number) for number in range(12)])
    wide = plan_of(20)

    orders = {tuple(item.key for item in plan.ordered(f"0:0:{session}")) for session in range(8)}
    first = {wide.ordered(f"0:0:{session}")[0].live_bytes < 1 << 10 for session in range(8)}

    assert len(orders) == 8
    assert first == {True, False}


def test_memory_is_shared_in_turns_but_where_weights_evict_it_anyway():
    small, large = (PackPlan("p", [brick("b", footprint=footprint)]) for footprint in (MIDDLE, LARGE))

    assert [small.shares_memory(session) for session in range(4)] == [True, False, True, False]
    assert [large.shares_memory(session) for session in range(4)] == [True] * 4


@given(st.integers(2, 30))
def test_halves_part_the_bricks(count):
    plan = plan_of(count)

    first, second = plan.halves()

    assert [*first.items, *second.items] == plan.items
    assert abs(len(first.items) - len(second.items)) <= 1
    assert len({plan.id, first.id, second.id}) == 3

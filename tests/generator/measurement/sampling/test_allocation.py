"""Time goes where it narrows the models' totals."""

import math
import random
from pathlib import Path

import pytest
from dlbricks.db import Block, Subject
from dlbricks.generator.measurement.item import Item
from dlbricks.generator.measurement.sampling.allocation import occurrence_weights, time_shares


def _item(key, latency_ns, spread=0.03, count=12):
    draw = random.Random(key)
    item = Item(Subject.BRICK, key, key, Path(key), unroll=1)
    samples = tuple((round(latency_ns * draw.gauss(1, spread)), 1) for _ in range(count))
    item.blocks = [Block(0, 0, samples)]
    return item


def test_a_long_brick_that_occurs_often_is_worth_more_than_a_short_one_that_occurs_once():
    items = [_item("long", 1e6), _item("short", 5e3)]

    shares = time_shares(items, {"model": {"long": 12, "short": 1}})

    assert shares[items[0].id] > 5 * shares[items[1].id]
    assert sum(shares.values()) == pytest.approx(2)


def test_noise_is_worth_time():
    items = [_item("calm", 1e5, spread=0.005), _item("noisy", 1e5, spread=0.05)]

    shares = time_shares(items)

    assert shares[items[1].id] > 2 * shares[items[0].id]


def test_no_item_is_starved():
    items = [_item("huge", 1e9), *(_item(f"tiny{n}", 1e3) for n in range(20))]

    assert min(time_shares(items).values()) > 0.05


def test_without_samples_all_share_alike():
    items = [Item(Subject.BRICK, key, key, Path(key)) for key in "abc"]

    assert set(time_shares(items).values()) == {1.0}


def test_a_model_counts_by_its_own_total():
    weights = occurrence_weights({"small": {"a": 1}, "large": {"b": 1, "c": 1}}, {"a": 10.0, "b": 500.0, "c": 500.0})

    assert weights["a"] == pytest.approx(1 / 10)
    assert weights["b"] == pytest.approx(1 / 1000)


def test_shared_time_narrows_the_total_more_than_equal_time():
    """The variance of a total under both, for the same time, from the formula that the shares come from."""
    draw = random.Random(1)
    items = [_item(f"b{n}", 10 ** draw.uniform(3.5, 6.5), spread=draw.uniform(0.005, 0.05)) for n in range(60)]
    counts = {item.key: draw.choice([1, 1, 2, 12]) for item in items}
    shares = time_shares(items, {"model": counts})

    def variance(share):
        total = 0.0
        for item in items:
            values = [elapsed for elapsed, _ in item.blocks[0].samples]
            centre = sum(values) / len(values)
            sd = math.sqrt(sum((value - centre) ** 2 for value in values) / len(values))
            samples = 1e8 * share(item) / centre
            total += (counts[item.key] * sd) ** 2 / samples
        return total

    assert variance(lambda item: shares[item.id]) < 0.6 * variance(lambda item: 1.0)

"""Bricks read between sizes: exact where work is a polynomial, marked, as good as left-out sizes say, never beyond."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterable, Mapping

import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.decomposition import Decomposition
from dlbricks.bricks.graph.model_graph import ModelGraph
from dlbricks.bricks.layer import Cutting
from dlbricks.constructor.choice import Query
from dlbricks.constructor.curve import Interpolation
from dlbricks.constructor.evidence import EstimateRequest, Evidence
from dlbricks.constructor.interpolation import Sized, read_between
from dlbricks.constructor.interventions import Interventions
from dlbricks.constructor.measurements import BrickMeasurements
from dlbricks.constructor.uncertainty.interval import Uncertainty
from dlbricks.db import Conditions, Measurement, Stop, Subject
from dlbricks.db.values import Identity
from dlbricks.models import ModelSource
from hypothesis import given, settings
from hypothesis import strategies as st
from lab import summary_of

from .conftest import ATTENTION, attention, graph

SIZES = (16, 32, 64, 128)
NOTHING = Interventions(reason="nobody asked")


def sized(size: int, made: ModelGraph | None = None) -> Sized:
    cut = attention(size) if made is None else made
    units = tuple((index,) for index in cut.live)
    model = Decomposition(ModelSource("m", None, None), cut, cut, tuple(sequences(cut, 1)), units, (), "", None)
    return Sized(size, model, NOTHING)


def measurement(key: str, ms: float, variant: str = "") -> Measurement:
    ns = ms * 1e6
    return Measurement(
        str(uuid.uuid4()),
        "run",
        Identity(Subject.BRICK, key, "", "", Conditions(1), variant),
        1,
        summary_of(ns),
        Stop.VISITS,
        undisturbed_ns=0.9 * ns,
        quiet=1.0,
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """What is known of the model that was asked for, with what was read between sizes."""

    bricks: BrickMeasurements
    interpolated: Interpolation


def stored(latencies: Mapping[str, float], **others: Mapping[str, Measurement]) -> BrickMeasurements:
    return BrickMeasurements(latest={key: measurement(key, ms) for key, ms in latencies.items()}, **others)


def read(wanted: Sized, others: Iterable[Sized], known: BrickMeasurements) -> Evidence:
    """What is known with what was read, of the bricks of all sizes alike."""
    sizes = [*others]
    bricks = {(size.model.own.key, ""): known for size in (wanted, *sizes)}
    request = EstimateRequest(Cutting(1), Query(), None)  # type: ignore[arg-type]  # nothing asks for remedies
    return read_between(
        wanted, sizes, "seq", Evidence(request, bricks=bricks, uncertainty=Uncertainty(known.members(), {}))
    )


def between(wanted: Sized, others: Iterable[Sized], known: BrickMeasurements) -> Found:
    """What is read between sizes, where it can be."""
    found, key = read(wanted, others, known), wanted.model.own.key
    interpolated = found.interpolated[key]
    assert isinstance(interpolated, Interpolation), interpolated
    return Found(found.bricks_in(key, ""), interpolated)


def why_not(wanted: Sized, others: Iterable[Sized], known: BrickMeasurements) -> str:
    """Why nothing is read."""
    reason = read(wanted, others, known).interpolated[wanted.model.own.key]
    assert isinstance(reason, str)
    return reason


def keys(one: Sized) -> list[str]:
    return [part.key for part in one.model.sequences]


def polynomial(terms: tuple[float, ...], size: int) -> float:
    return sum(one * size**term for term, one in enumerate(terms))


TERMS = st.tuples(st.floats(0.01, 1), st.floats(0, 0.1), st.floats(0, 1e-3))


@settings(deadline=None)  # the first example imports
@given(st.lists(TERMS, min_size=5, max_size=5), st.integers(17, 127).filter(lambda size: size not in SIZES))
def test_work_of_any_order_is_read_exactly_for_each_brick(terms: list[tuple[float, ...]], size: int) -> None:
    others = [sized(one) for one in SIZES]
    known = {
        key: polynomial(terms[place], one.size)
        for one in others
        for place, key in enumerate(keys(one)[:-1])  # of the two that are one brick, the first is measured
    }
    wanted = sized(size)

    found = between(wanted, others, stored(known))

    latest = found.bricks.latest
    for place, key in enumerate(keys(wanted)[:-1]):
        assert latest[key].latency_ns == pytest.approx(1e6 * polynomial(terms[place], size), rel=1e-6)
        assert latest[key].undisturbed_ns == pytest.approx(0.9e6 * polynomial(terms[place], size), rel=1e-6)
    assert found.interpolated.share == pytest.approx(1.0)
    assert found.interpolated.error == pytest.approx(0.0, abs=1e-6)
    assert found.interpolated.bricks == 4
    assert found.bricks.read == {*keys(wanted)}


def linear(*sizes: int, slower: Mapping[int, float] | None = None) -> dict[str, float]:
    return {key: size * (slower or {}).get(size, 1.0) for size in sizes for key in keys(sized(size))}


def test_what_is_measured_is_taken_as_it_is() -> None:
    wanted = sized(48)
    first, *rest = dict.fromkeys(keys(wanted))

    found = between(wanted, map(sized, SIZES), stored(linear(*SIZES) | {first: 7.0}))

    bricks = found.bricks
    assert bricks.latest[first].latency_ns == 7e6
    assert (bricks.read, bricks.measured(first)) == ({*rest}, True)
    assert found.interpolated.between == (32, 64)
    assert found.interpolated.share == pytest.approx(3 * 48 / (2 * 7 + 3 * 48))  # the first brick is there twice


def test_what_slows_all_bricks_of_a_size_does_not_average_out() -> None:
    """Five bricks that were all 10 % slow at a size are off by 10 % together, and the interval says so."""
    known = linear(*SIZES, slower={32: 1.1, 64: 1.0})

    found = between(sized(48), map(sized, SIZES), stored(known))

    left_out = {one.length: one for one in found.interpolated.left_out}
    assert [*left_out] == [32, 64]
    assert left_out[32].ms == pytest.approx(5 * 32 * 1.1)
    assert left_out[32].predicted_ms == pytest.approx(5 * 32)
    assert found.interpolated.error is not None
    assert found.interpolated.error > 0.1


def test_a_brick_of_two_families_takes_what_they_do_on_average() -> None:
    others = [sized(one) for one in (4, 16)]
    known = {}
    for one in others:
        relu, transpose, first, second, _ = keys(one)
        known |= {relu: 1.0, transpose: 1.0, first: 2.0, second: 4.0}
    wanted = sized(8)
    assert keys(wanted)[2] == keys(wanted)[3]

    found = between(wanted, others, stored(known))

    assert found.bricks.latest[keys(wanted)[2]].latency_ns == pytest.approx(3e6)
    assert found.interpolated.error is None  # of two sizes none can be left out


def test_parts_of_a_brick_are_read_where_both_neighbours_have_them() -> None:
    inner = {key: measurement(key, size / 2, "inner") for size in (32, 64) for key in keys(sized(size))[:1]}
    inner |= {key: measurement(key, 1.0, "inner") for key in keys(sized(16))[1:2]}

    found = between(sized(48), map(sized, SIZES), stored(linear(*SIZES), inner=inner))

    (read,) = {*found.bricks.inner} - {*inner}
    assert read == keys(sized(48))[0]
    assert found.bricks.inner[read].latency_ns == pytest.approx(24e6)
    assert found.bricks.inner[read].variant == "inner"


@pytest.mark.parametrize(
    ("size", "measured", "reason"),
    [
        (48, (), "no other size of seq is measured, of those that were looked at"),
        (8, SIZES, "seq=8 does not lie between sizes that are measured (16, 32, 64, 128)"),
        (200, SIZES, "seq=200 does not lie between sizes that are measured (16, 32, 64, 128)"),
    ],
)
def test_nothing_is_extrapolated(size: int, measured: tuple[int, ...], reason: str) -> None:
    others = [sized(one) for one in SIZES]

    assert why_not(sized(size), others, stored(linear(*measured))) == reason


def test_a_family_that_is_broken_is_named() -> None:
    """From 64 on the runtime executes something else: what is read below cannot be read there, nor between."""
    changed = [sized(size, graph(ATTENTION.format(size).replace("Relu(v)", "Tanh(v)"))) for size in (64, 128)]
    others = [sized(16), sized(32), *changed]
    known = {key: 1.0 for one in others for key in keys(one)}
    missing = keys(sized(48))[-1]  # Relu, that the other place has as well

    found = why_not(sized(48), others, stored(known))

    assert "1 of 5 sequences that are not measured cannot be read, such as Relu (Relu_4)" in found
    assert "one like it at 16, 32, and it is measured at 16, 32" in found
    alone = graph(ATTENTION.format(48).replace("Relu(v)", "Sigmoid(v)"))
    assert "none like it at any other size" in why_not(sized(48, alone), others, stored(known))
    assert missing not in known


def test_a_brick_that_takes_nothing_is_no_division_by_zero() -> None:
    known = {key: 0.0 for size in SIZES for key in keys(sized(size))}

    found = between(sized(48), map(sized, SIZES), stored(known))

    read = [one for one in found.bricks.latest.values() if one.summary.samples == 0]
    assert all(one.latency_ns == pytest.approx(1.0) for one in read)
    assert dataclasses.asdict(found.interpolated)["error"] == pytest.approx(0.0, abs=1e-9)  # type: ignore[arg-type]


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """What a machine did at each size is in all bricks of it, beside what each brick has of its own."""
    others, wanted = [sized(one) for one in (*SIZES, 256)], sized(48)
    parts = keys(wanted)
    inside = []
    for seed in range(150):
        chance = random.Random(seed)
        known = {}
        for one in others:
            common = chance.gauss(1, 0.03)
            known |= {key: one.size * common * chance.gauss(1, 0.03) for key in keys(one)}
        found = between(wanted, others, stored(known))
        assert found.interpolated.error is not None
        latest = found.bricks.latest
        whole = sum(latest[key].latency_ns for key in parts) / 1e6
        inside.append(abs(whole - 48 * len(parts)) <= found.interpolated.error * whole)

    assert sum(inside) / len(inside) >= 0.9

"""Absolute limits: how they are written, and that what is inside an interval is not decided."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.analyzer.limits import Figure, Limit, Standing, judged_limits, parse_limit
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.alone import Alone
from dlbricks.generator.worker.messages import Occupied
from hypothesis import given
from hypothesis import strategies as st

UNITS = {"latency": "ms", "p99": "ms", "size": "MB", "difference": "", "tokens/s": ""}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("latency>10ms", Limit("latency", above=True, value=10.0, text="latency>10ms")),
        ("p99 > 0.2s", Limit("p99", above=True, value=200.0, text="p99 > 0.2s")),
        ("size>1.5GB", Limit("size", above=True, value=1500.0, text="size>1.5GB")),
        ("difference>1e-3", Limit("difference", above=True, value=1e-3, text="difference>1e-3")),
        ("tokens/s<20", Limit("tokens/s", above=False, value=20.0, text="tokens/s<20")),
        ("latency<1ms", Limit("latency", above=False, value=1.0, text="latency<1ms")),
    ],
)
def test_a_limit_is_a_figure_a_number_and_a_unit(text: str, limit: Limit):
    assert parse_limit(text, UNITS) == limit


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("latency>10", "latency has us or ms or s"),
        ("latency>10MB", "'MB'"),
        ("speed>10ms", "latency, p99, size, difference, tokens/s"),
        ("difference>1ms", "no unit"),
        ("latency>1.2.3ms", "not a number"),
        ("latency=10ms", "FIGURE>VALUE"),
    ],
)
def test_what_is_no_limit_is_told_in_a_line_that_names_what_is_expected(text: str, told: str):
    with pytest.raises(UsageError, match=told) as raised:
        parse_limit(text, UNITS)

    assert "\n" not in str(raised.value)


@given(
    st.floats(0.1, 100), st.floats(0, 10), st.floats(0.1, 100), st.booleans(),
)  # fmt: skip
def test_a_limit_is_decided_if_the_whole_interval_stands_on_one_side(value: float, half: float, at: float, above: bool):
    low, high = value - half, value + half

    standing = Limit("latency", above, at, "").judge(Figure(value, (low, high)))

    beyond = low > at if above else high < at
    within = high <= at if above else low >= at
    assert standing is (Standing.CROSSED if beyond else Standing.KEPT if within else Standing.UNDECIDED)


def test_each_model_is_judged_and_what_was_not_measured_is_not_decided():
    limits = [parse_limit("latency>10ms", UNITS), parse_limit("size>50MB", UNITS)]
    figures = {
        "quick": {"latency": Figure(5.0, (4.0, 6.0)), "size": Figure(10.0)},
        "unknown": {"latency": Figure(None), "size": Figure(10.0)},
    }

    judgements = judged_limits(limits, figures)

    assert [judgement.standing for judgement in judgements] == ["kept", "kept", "cannot tell", "kept"]
    assert "not measured" in judgements[2].line


def test_a_latency_of_unknown_interval_decides_nothing():
    (judgement,) = judged_limits(
        [parse_limit("latency>10ms", UNITS)], {"few": {"latency": Figure.scattering(20.0, None)}}
    )

    assert judgement.standing is Standing.UNDECIDED
    assert "of unknown interval" in judgement.line


def test_a_percentile_has_an_interval_or_the_reason_for_none():
    def alone(executions: int) -> Alone:
        times = tuple(np.random.default_rng(0).integers(1_000_000, 2_000_000, executions).tolist())
        return Alone(0, Occupied(0, 0, 0, 0, 0, times), 0)

    many, few = Figure.percentile(alone(1000), 0.95), Figure.percentile(alone(100), 0.95)

    assert many.value is not None
    assert many.interval is not None
    assert many.interval[0] < many.value < many.interval[1] < 2.0
    assert (few.value, few.interval) == (None, None)
    assert few.why == "of 100 executions too few are beyond it"

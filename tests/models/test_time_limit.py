"""The time that work on a model may take before anything is measured."""

from __future__ import annotations

import time

import pytest
from dlbricks.errors import OutOfTime
from dlbricks.models.time_limit import in_time, limited_to, require_time, time_left_s


def test_without_a_limit_there_is_all_the_time() -> None:
    require_time("reading")

    assert list(in_time(range(5), "counting")) == [0, 1, 2, 3, 4]
    assert time_left_s() == float("inf")


def test_the_error_names_the_step_its_progress_and_what_took_the_time() -> None:
    with limited_to(0.1):
        time.sleep(0.2)
        with pytest.raises(OutOfTime, match=r"while counting \(0 of 7 done\); most .* counting, 0\.[2-9] s"):
            list(in_time(range(7), "counting"))

    with limited_to(0.3):
        time.sleep(0.2)
        require_time("reading")
        time.sleep(0.15)
        with pytest.raises(OutOfTime, match=r"while inferring; most of it went into reading.*give a longer --budget"):
            require_time("inferring")


def test_a_limit_ends_with_its_context() -> None:
    with limited_to(1e-9):
        pass

    assert list(in_time([1], "counting")) == [1]

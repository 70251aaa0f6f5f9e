"""What words on the command line mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest
from dlbricks.cli.spelling import moment


@pytest.mark.parametrize("text", ["2026-11-23T08:00Z", "2026-11-23T09:00+01:00"])
def test_a_moment_with_a_time_zone(text):
    assert moment(text) == datetime(2026, 11, 23, 8, tzinfo=UTC)


def test_a_moment_without_a_time_zone_is_local():
    assert moment("2026-11-23 08:00") == datetime(2026, 11, 23, 8).astimezone()
    assert moment("2026-11-23") == datetime(2026, 11, 23).astimezone()


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5d", 129600)])
def test_a_moment_that_long_ago(text, ago):
    before = datetime.now(UTC)

    found = moment(text) + timedelta(seconds=ago)

    assert before <= found <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["", "90", "2026", "yesterday", "-2h", "2026-13-01", "h", "999999999d"])
def test_what_is_no_moment(text):
    with pytest.raises(click.BadParameter, match="is no time in the past"):
        moment(text)

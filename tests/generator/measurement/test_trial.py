"""Two ways that use different numbers of cores are compared only while enough cores are free."""

from __future__ import annotations

import pytest
from dlbricks.db.values import runtime_from
from dlbricks.errors import MachineBusy
from dlbricks.generator.measurement import trial
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models.runnable import Runnable

PLAIN = runtime_from({"options": {"pinning": "off"}})
BRANCHES = runtime_from({"options": {"pinning": "off", "execution": "parallel", "inter_op": "2"}})


@pytest.fixture
def pair(branches):
    def made(first, second):
        return TrialPair(*(Contender(Runnable(branches, synthetic=False), place) for place in (first, second)))

    return made


@pytest.mark.parametrize("second", [place_of(PLAIN, 2), place_of(BRANCHES, 1)], ids=["threads", "branches"])
def test_more_cores_are_tried_only_while_they_are_free(pair, second, monkeypatch):
    asked = pair(place_of(PLAIN, 1), second)
    monkeypatch.setattr(trial, "free_cores", lambda: 1)
    (refused,) = try_out([asked], visits=4, processes=1)
    monkeypatch.setattr(trial, "free_cores", lambda: 2)
    (tried,) = try_out([asked], visits=4, processes=1)

    assert isinstance(refused, MachineBusy)
    assert "only 1 of the 2 cores that it needs are free" in str(refused)
    assert isinstance(tried, Trial)
    assert tried.visits == 4


def test_ways_that_use_as_many_cores_are_tried_at_any_time(pair, monkeypatch):
    monkeypatch.setattr(trial, "free_cores", lambda: pytest.fail("nobody has to watch"))

    (tried,) = try_out([pair(place_of(PLAIN, 2), place_of(PLAIN, 2))], visits=4, processes=1)

    assert isinstance(tried, Trial)

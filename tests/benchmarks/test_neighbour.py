"""The neighbour of our own: its lengths, its schedule, and that it never outlives who asked for it."""

from __future__ import annotations

import importlib
import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def neighbour(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("neighbour")


def test_each_eight_lengths_cover_the_range(neighbour):
    found = list(itertools.islice(neighbour.lengths(random.Random(3)), 16))

    ratio = (neighbour.LONGEST_S / neighbour.SHORTEST_S) ** (1 / 8)
    edges = [neighbour.SHORTEST_S * ratio**step for step in range(9)]
    for eight in (found[:8], found[8:]):
        assert all(low <= length <= high for low, length, high in zip(edges, sorted(eight), edges[1:], strict=False))
    assert found == list(itertools.islice(neighbour.lengths(random.Random(3)), 16))


def test_it_ends_with_its_context_and_shows_what_it_did(neighbour):
    with neighbour.Neighbour(1.0, threads=1, seed=2) as one:
        (child,) = psutil.Process().children()
        time.sleep(0.5)

    assert not child.is_running()
    assert one.schedule
    assert {burst["kind"] for burst in one.schedule} <= set(neighbour.BURSTS)
    assert one.facts["duty"] == 1.0
    assert sum(one.facts["busy_s"].values()) == pytest.approx(sum(burst["seconds"] for burst in one.schedule))


def test_without_a_duty_there_is_none(neighbour):
    with neighbour.Neighbour(0.0, threads=1) as one:
        assert not psutil.Process().children()

    assert one.schedule == []
    assert one.facts["achieved_duty"] == 0.0


def test_a_duty_that_makes_no_sense_is_refused(neighbour):
    with pytest.raises(ValueError, match="a duty cannot be 50"):
        neighbour.Neighbour(50, threads=1)


def test_one_that_dies_is_reported(neighbour):
    with (  # noqa: PT012
        pytest.raises(RuntimeError, match="ended by itself"),
        neighbour.Neighbour(0.5, threads=1),
    ):
        (child,) = psutil.Process().children()
        child.kill()
        child.wait(10)


def test_it_ends_when_its_parent_is_killed(neighbour):
    code = "import time; from neighbour import Neighbour\n"
    code += "with Neighbour(0.5, threads=1): print(flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=FOLDER, stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    (child,) = psutil.Process(parent.pid).children()

    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    _, alive = psutil.wait_procs([child], timeout=30)
    assert not alive

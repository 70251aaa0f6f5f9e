"""How much of the product one use of it enters: modules, decompositions, graphs, workers.

The limits are what was reached, rounded up; a change that makes a journey longer says why.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from types import FrameType
from typing import Self

import dlbricks
import pytest

ROOT = Path(dlbricks.__file__).parent
LIMITS = {"generate": 74, "run": 85, "report": 165, "estimate": 68, "stored report": 92}
"""Modules of which a function is called, in a process that looked up nothing yet; loaded modules do not count."""


class Entered:
    """Counts what is called between ``with`` and its end."""

    def __enter__(self) -> Self:
        self.modules: set[str] = set()
        self.calls: collections.Counter[str] = collections.Counter()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & 2 or not ours(frame):  # 2: a function, and no class or module
            return
        if code.co_filename not in self.modules and not imported(frame):
            self.modules.add(code.co_filename)
        self.calls[code.co_qualname] += 1


def ours(frame: FrameType) -> bool:
    """Whether a frame is of the product."""
    file = frame.f_code.co_filename
    return file.startswith(f"{ROOT}/") and "/." not in file and "/tests/" not in file


def imported(frame: FrameType | None) -> bool:
    """Whether a call is part of an import: that is no part of a journey."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and ours(frame):
            return True
        frame = frame.f_back
    return False


@pytest.mark.slow
def test_a_report_decomposes_once_and_enters_little(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journeys = {
        "generate": ("generate", "squeezenet", "-g", "1", "--graph", "runtime", "-o", "suite"),
        "run": ("run", "suite", "--with", "squeezenet", "--visits", "10"),
        "report": ("report", "squeezenet", "--db", "other.db", "-o", "page.html", "--budget", "60s"),
    }
    entered = {}
    for name, words in journeys.items():
        with Entered() as entered[name]:
            done = cli(*words)
        assert done.code in {0, 3}, done.err  # 3: what the budget left out is missing

    estimate = ("estimate", "squeezenet", "--db", "other.db")
    cli(*estimate)  # from now on its decompositions are kept
    for name, words in {"estimate": estimate, "stored report": (*journeys["report"], "--no-prove")}.items():
        with Entered() as entered[name]:
            assert cli(*words).code in {0, 3}
        assert entered[name].calls["build_graph"] == 0

    assert {name: len(one.modules) for name, one in entered.items() if len(one.modules) > LIMITS[name]} == {}
    calls = entered["report"].calls
    assert calls["build_graph"] <= 2
    assert calls["load_brick"] == 0
    assert calls["Worker.__init__"] <= 40  # four for each place of a proof
    assert entered["run"].calls["Worker.__init__"] <= 2

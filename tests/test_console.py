"""Progress and messages: a bar on a terminal, one line per stage elsewhere, and no thread of its own."""

from __future__ import annotations

import os
import pty
import threading

import pytest
from dlbricks import console
from dlbricks.analyzer.units import duration, milliseconds, quantity, size
from dlbricks.console import Reporter
from dlbricks.generator.progress import Progress, Stage


def steps(count: int) -> list[Progress]:
    """A command that prepares, then samples, then prepares again."""
    stages = [Stage.PREPARE, Stage.SAMPLE, Stage.PREPARE]
    return [
        Progress(stages[i * len(stages) // count], i, count, f"model_{i}", i / 5, (count - i) / 5) for i in range(count)
    ]


def test_elsewhere_each_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as progress:
        for step in steps(9):
            progress(step)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "preparing: 0 of 9, about 1.8 s left",
        "measuring: 3 of 9, about 1.2 s left",
        "preparing: 6 of 9, about 0.6 s left",
    ]


def test_on_a_terminal_a_bar_is_drawn_by_the_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    threads = threading.active_count()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("COLUMNS", "100")
        with Reporter() as progress:
            for step in steps(9):
                progress(step)
                assert threading.active_count() == threads
            terminal.flush()
            drawn = os.read(reader, 1 << 16).decode()
    os.close(reader)

    assert "measuring" in drawn
    assert "3/9" in drawn
    assert "1.2 s left" in drawn


def test_a_bar_is_not_drawn_more_often_than_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(Reporter, "_draw", lambda _self, _bar, _verb, progress: drawn.append(progress.done))
    reporter = Reporter()
    reporter._bar = object()  # type: ignore[assignment]

    for done in range(1000):
        reporter(Progress(Stage.SAMPLE, done, 2000, "x", done / 1000))

    assert 9 <= len(drawn) <= 12


def test_a_label_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("evil\x1b[2J")

    assert capsys.readouterr().err == "evil\\x1b[2J\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_have_prefixes() -> None:
    assert [quantity(n) for n in (0, 999, 1000, 4.09e9, 999.7e6)] == ["0", "999", "1 k", "4.09 G", "1 G"]
    assert [size(n) for n in (12, 1 << 20, 102_230_000)] == ["12 B", "1 MiB", "97.5 MiB"]
    latencies = [milliseconds(n) for n in (1234.5678, 12.5, 0.1, 0.0999, 0.00023456, 0.0)]
    assert latencies == ["1,234.568", "12.500", "0.100", "0.0999", "0.000235", "0.000"]

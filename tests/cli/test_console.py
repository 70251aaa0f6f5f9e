"""Progress and messages: a bar on a terminal, a line now and then elsewhere, and no thread of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import threading

import pytest
from dlbricks.analyzer.report.units import duration, milliseconds, quantity, size, within
from dlbricks.cli import console
from dlbricks.cli.console import Reporter
from dlbricks.generator.progress import Progress, Stage


def steps(count: int) -> list[Progress]:
    """A command that prepares, then samples, then prepares again."""
    stages = [Stage.PREPARE, Stage.SAMPLE, Stage.PREPARE]
    return [
        Progress(stages[i * len(stages) // count], i, count, f"model_{i}", i / 5, (count - i) / 5) for i in range(count)
    ]


def follow(reporter: Reporter, clock: list[float], taken: list[Progress]) -> None:
    for step in taken:
        clock[0] = step.elapsed_s
        reporter(step)


def test_elsewhere_a_line_comes_every_ten_seconds_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    with Reporter(clock=lambda: clock[0]) as progress:
        follow(progress, clock, [Progress(Stage.GENERATE, n, 100, "m", n / 4, (100 - n) / 4) for n in range(101)])

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "decomposing: 8 of 100, about 23 s left",
        "decomposing: 48 of 100, about 13 s left",
        "decomposing: 88 of 100, about 3.0 s left",
    ]


def test_no_two_shown_forecasts_in_a_row_rise(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    forecasts_s = [30.0, 20.0, 25.0, 40.0, 60.0, 50.0, 24.0, 26.0]
    with Reporter(clock=lambda: clock[0]) as progress:
        follow(
            progress, clock, [Progress(Stage.SAMPLE, n, 9, "m", 10.0 * (n + 1), s) for n, s in enumerate(forecasts_s)]
        )

    lines = [line.partition(", about ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["30 s left", "20 s left", "25 s left", "", "", "", "24 s left", "26 s left"]


def test_the_forecast_of_another_step_is_none_that_rose(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    steps = [(Stage.GENERATE, 3.0), (Stage.GENERATE, 5.0), (Stage.SAMPLE, 300.0), (Stage.SAMPLE, 280.0)]
    with Reporter(clock=lambda: clock[0]) as progress:
        follow(progress, clock, [Progress(stage, n, 9, "m", 10.0 * (n + 1), s) for n, (stage, s) in enumerate(steps)])

    lines = [line.partition(", about ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["3.0 s left", "5.0 s left", "5 min 00 s left", "4 min 40 s left"]


@pytest.mark.parametrize(("quiet", "seconds"), [(False, 1.9), (True, 600.0)])
def test_what_is_quick_or_quiet_says_nothing(capsys: pytest.CaptureFixture[str], quiet: bool, seconds: float) -> None:
    clock = [0.0]
    with Reporter(quiet=quiet, clock=lambda: clock[0]) as progress:
        follow(progress, clock, [Progress(Stage.SAMPLE, n, 10, "m", seconds * n / 10, 1.0) for n in range(10)])

    assert capsys.readouterr().err == ""


def read_all(reader: int) -> str:
    """What was written to a terminal that is closed by now; it hands on in parts."""
    parts = []
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and all is read
        while part := os.read(reader, 1 << 16):
            parts.append(part)
    os.close(reader)
    return b"".join(parts).decode()


def test_on_a_terminal_a_bar_is_drawn_by_the_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    threads = threading.active_count()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("COLUMNS", "100")
        clock = [0.0]
        with Reporter(clock=lambda: clock[0]) as progress:
            for step in steps(9):
                clock[0] = 5 * step.elapsed_s
                progress(step)
                assert threading.active_count() == threads
    drawn = read_all(reader)

    assert "measuring" in drawn
    assert "3/9" in drawn
    assert "1.2 s left" in drawn


def test_a_bar_is_not_drawn_more_often_than_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(Reporter, "_draw", lambda _self, _bar, _verb, progress, _left: drawn.append(progress.done))
    clock = [0.0]
    reporter = Reporter(clock=lambda: clock[0])
    reporter._bar = object()  # type: ignore[assignment]

    for done in range(1000):
        clock[0] = done / 1000
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
    assert latencies == ["1,235", "12.5", "0.100", "0.0999", "0.000235", "0.00"]
    pairs = [(401.4, 35.2), (3.1742, 0.016), (3.1742, 0.002), (0.0234, 0.0029), (1.0, None)]
    assert [within(*pair) for pair in pairs] == ["401 ± 35", "3.17 ± 0.02", "3.17 ± 0.002", "0.0234 ± 0.0029", "1.00"]

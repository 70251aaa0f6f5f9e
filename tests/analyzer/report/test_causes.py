"""From bricks to model, as rows and as text."""

from __future__ import annotations

import re

from dlbricks.analyzer.report.causes import rows_of, written
from dlbricks.constructor.remedies import Task, TaskKind
from dlbricks.constructor.result import Estimate, Term
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import ModelSource
from flat import changed, flat_estimate


def explained(**changes: Term) -> Estimate:
    known = {
        "bricks": Term(10.0, (9.75, 10.25)),
        "fusion": Term(3.0, (2.9, 3.1)),
        "layout": Term(0.0, (0.0, 0.0)),
        "overhead": Term(-0.75, (-0.85, -0.65)),
        "cache": Term(1.0, (0.8, 1.2)),
        "unexplained": Term(-0.75, (-1.0, -0.5)),
    }
    return flat_estimate(
        name="m", granularity=1, cache="model", estimate_ms=8.75, ci95_ms=(8.0, 9.5), measured_ms=8.0,
        measured_ci95_ms=(7.9, 8.1), attribution=known | changes,
    )  # fmt: skip


def test_rows_carry_the_sign_with_which_they_count() -> None:
    rows = {row.label: row for row in rows_of(explained())}

    assert list(rows) == ["bricks", "fusion", "layout", "overhead", "cache", "estimate", "unexplained", "measured"]
    assert (rows["fusion"].ms, rows["overhead"].ms, rows["cache"].ms) == (-3.0, 0.75, 1.0)
    assert [row.label for row in rows.values() if row.total] == ["bricks", "estimate", "measured"]
    known = [row.ms for row in rows.values() if row.ms is not None and row.label not in {"estimate", "measured"}]
    assert sum(known) == rows["measured"].ms


def test_the_text_shows_signs_intervals_and_what_is_not_known() -> None:
    lines = written(explained())

    assert lines[0] == "m: from bricks to model, source graph, cache model"
    assert lines[1].split() == ["=", "bricks", "10.00", "ms", "±", "0.25"]
    assert lines[2].split()[:3] == ["-", "fusion", "3.00"]
    assert lines[4].split()[:3] == ["+", "overhead", "0.75"]
    assert lines[6].split()[:3] == ["=", "estimate", "8.75"]
    assert lines[7].split()[:3] == ["-", "unexplained", "0.75"]
    assert lines[-1].split() == ["sizes", "of", "all", "causes", "5.50", "ms"]


def test_commands_stand_below_once_each() -> None:
    unknown = Term(reason="not measured", remedy=Task(TaskKind.CEILINGS, database="my home.db"))

    lines = written(explained(fusion=unknown, cache=unknown, unexplained=Term(reason="no")))

    assert [line for line in lines if "would be known" in line] == [
        "  fusion and cache would be known after: dlbricks system --ceilings --db 'my home.db'"
    ]


def test_what_another_system_lacks_is_not_measured_into_the_database_here() -> None:
    task = Task(TaskKind.BRICKS, ModelSource("m", None, "m"), "my home.db", threads=1, again="all")
    there = changed(explained(fusion=Term(reason="not measured", remedy=task)), system="e" * 64)
    here = changed(there, system=probe_system().key)

    (line,) = [line for line in written(there) if "would be known" in line]
    assert re.search(
        r"here, dlbricks generate m -g 1 --graph source -o (suite\S+); on system eeeeeeeeeeee, "
        r"dlbricks run \1 --threads 1 --again all; then export and merge the database$",
        line,
    )
    assert any(line.endswith("--threads 1 --db 'my home.db' --again all") for line in written(here))

"""Answers as text: the one place where results become a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["SCHEMA", "Answer", "Column", "Format", "printable", "render"]

SCHEMA = 1
"""Version of the JSON answers. 1: the first."""

Row = Mapping[str, object]


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: Key of the value in each result; ``a.b`` reaches into a nested mapping.
        title: Heading.
        text: How a value is written; None is written as ``-``.
    """

    key: str
    title: str
    text: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answers.

    Attributes:
        results: One row per result, with the keys that scripts rely on.
        totals: What stands beside the results in JSON.
        columns: Those that the table shows; JSON and CSV hold every key.
        summary: Lines below the table.
        table: Rows of the table, where these are not the results.
    """

    results: Sequence[Row]
    totals: Mapping[str, object] = field(default_factory=dict)
    columns: Sequence[Column] = ()
    summary: Sequence[str] = ()
    table: Sequence[Row] | None = None

    def frame(self) -> object:
        """The results as a ``pandas.DataFrame``, one column per key."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.results])


def render(answer: Answer, form: Format | str = Format.TABLE) -> str:
    """The answer as text that ends with a newline."""
    match Format(form):
        case Format.JSON:
            return _json(answer)
        case Format.CSV:
            return _csv(answer.results)
        case Format.TABLE:
            return _table(answer)


def printable(text: str) -> str:
    """The text with control characters written as escapes: a model's name must not drive the terminal.

    So is what is no Unicode (a file's name need not be), and line breaks: a name cannot forge a line either.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _json(answer: Answer) -> str:
    """One object with a result per line: to indent would take Python's own encoder, many times slower."""
    results = ",\n".join(_encoded(row) for row in answer.results)
    totals = "".join(f",\n{_encoded(str(name))}: {_encoded(value)}" for name, value in answer.totals.items())
    return f'{{"schema": {SCHEMA}, "results": [{results}]{totals}}}\n'


def _encoded(value: object) -> str:
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: object) -> object:
    """The value with NaN and infinities as null: JSON has neither, and no number is known either way."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_finite(item) for item in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)


def _csv(rows: Sequence[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for row in rows:
        writer.writerow([_cell(row.get(key)) for key in keys])
    return out.getvalue()


def _cell(value: object) -> object:
    value = _finite(value)
    if isinstance(value, str):
        return printable(value)  # CSV has no escapes of its own, and is read on terminals too
    return json.dumps(value, allow_nan=False) if isinstance(value, list | dict) else value


def _table(answer: Answer) -> str:
    lines: list[str] = []
    rows = answer.results if answer.table is None else answer.table
    if answer.columns and rows:
        cells = [[_written(row, column) for column in answer.columns] for row in rows]
        titles = [column.title for column in answer.columns]
        # Figures stand right, so that their digits do; words stand left.
        right = [any(_is_number(_reach(row, column.key)) for row in rows) for column in answer.columns]
        widths = [max(len(line[i]) for line in [titles, *cells]) for i in range(len(titles))]
        lines += [_line(titles, widths, right), "  ".join("─" * width for width in widths)]
        lines += [_line(line, widths, right) for line in cells]
    if lines and answer.summary:
        lines.append("")
    # Cells are escaped already; a line of the summary may hold the name of any model or layer.
    return "".join(f"{line}\n" for line in [*lines, *map(printable, answer.summary)])


def _line(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = (
        cell.rjust(width) if figures else cell.ljust(width)
        for cell, width, figures in zip(cells, widths, right, strict=True)
    )
    return "  ".join(parts).rstrip()


def _written(row: Row, column: Column) -> str:
    value = _finite(_reach(row, column.key))
    return "-" if value is None else printable(column.text(value))


def _reach(row: Row, key: str) -> object:
    value: object = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""What every report has: typed ``rows``, a frame for pandas, and the object that the command line prints as JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the JSON answers. 1: the first."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a result, declared once: its key in records, its column in tables, its place in the result.

    Attributes:
        key: Key in records (JSON, CSV, frames); ``a.b`` reaches into a nested mapping.
        title: Heading of its column; empty: the key.
        unit: What tables write it by: ``ms``, ``s``, ``bytes``, ``count``, ``ratio``, ``share`` of 1, ``key`` of
            something stored, ``yes`` or no, ``words``, ``operators``; empty: as it is; or a function.
        interval: Key of the interval, half of which is written behind the value.
        spare: Whether a table that is too wide leaves the column out.
        path: The attribute of the result that has the value, such as ``latency.ms``; None: that of the key's name.
        cell: Key of the cell in the row of a table, if that is another.
    """

    key: str
    title: str = ""
    unit: str | Callable[[Any], str] = ""
    interval: str | None = None
    spare: bool = False
    path: str | None = None
    cell: str | None = None

    def of(self, result: object) -> object:
        """The value in a result; None where a part on its way is None."""
        for name in (self.path or self.key).split("."):
            result = None if result is None else getattr(result, name)
        return result


def record_of(result: object, fields: Iterable[Field]) -> dict[str, object]:
    """A result as a JSON object."""
    return {field.key: field.of(result) for field in fields}


def columns_of(fields: Iterable[Field], *keys: str) -> list[Field]:
    """Some of the fields of a result, in the order of the keys."""
    known = {field.key: field for field in fields}
    return [known[key] for key in keys]


@dataclass(frozen=True, slots=True)
class Records:
    """A report as plain data, with the keys that scripts rely on (docs/cli.md).

    Attributes:
        results: One row per result.
        totals: What stands beside the results in JSON.
        flat: Rows of CSV, where these are not the results: one per layer or kernel; or what makes them, where that
            takes long and few ask for it.
    """

    results: Sequence[Row]
    totals: Mapping[str, object] = dataclass_field(default_factory=dict)
    flat: Sequence[Row] | Callable[[], Sequence[Row]] | None = None

    @property
    def lines(self) -> Sequence[Row]:
        """Rows of CSV."""
        if self.flat is None:
            return self.results
        return self.flat() if callable(self.flat) else self.flat

    def frame(self, *, inner: bool = False) -> pd.DataFrame:
        """As ``Tabular.frame``."""
        import pandas as pd

        rows = self.lines if inner else self.results
        return pd.DataFrame([dict(flattened(row)) for row in rows])

    def to_json(self) -> dict[str, Any]:
        """As ``Tabular.to_json``."""
        totals = {str(name): finite(value) for name, value in self.totals.items()}
        return {"schema": SCHEMA, "results": [finite(row) for row in self.results], **totals}


class Tabular(ABC):
    """A report of a public function; beside what is here it has ``rows``, typed, and ``complete``."""

    __slots__ = ()

    @abstractmethod
    def records(self) -> Records:
        """The report as plain data."""

    def frame(self, *, inner: bool = False) -> pd.DataFrame:
        """The report as a ``pandas.DataFrame``: a flat row per result, with the keys of JSON (docs/cli.md) as columns.

        What is nested has columns of its own (``coverage.macs``), an interval has two (``ci95_ms_low``,
        ``ci95_ms_high``), and a list stays a list, which ``.str.len()`` counts and ``explode`` unfolds.

        Args:
            inner: A row for each layer, brick, kernel, run or finding of each result instead, as ``--format csv`` has
                them; a result that has nothing of this kind stays a row.

        Example:
            >>> estimate(models, store=store).frame().set_index("name")["estimate_ms"]  # doctest: +SKIP
        """
        return self.records().frame(inner=inner)

    def to_json(self) -> dict[str, Any]:
        """The report as the object that ``--json`` prints: plain values, and null where a number is not known.

        Example:
            >>> json.dumps(compare(models, store=store).to_json())  # doctest: +SKIP
        """
        return self.records().to_json()


def nested_rows(whole: Row, name: str, inner: Iterable[Row], *, without: Collection[str]) -> list[dict[str, object]]:
    """Rows of CSV for what a result holds: each with the result, and with what it is itself as ``name.key``.

    Args:
        whole: The result; it alone is the row where it holds nothing.
        name: What it holds.
        inner: These, one by one.
        without: Keys of the result that have no place in such a row.
    """
    kept = {key: value for key, value in whole.items() if key not in without}
    return [kept | {f"{name}.{key}": value for key, value in one.items()} for one in inner] or [kept]


def flattened(row: Row, before: str = "") -> Iterator[tuple[str, object]]:
    """A flat row: what is nested has columns of its own, and an interval has two."""
    for name, raw in row.items():
        key, value = f"{before}{name}", finite(raw)
        if isinstance(value, dict):
            yield from flattened(value, f"{key}.")
        elif "ci95" in name and (value is None or isinstance(value, list)):
            low, high = value or (None, None)
            yield from ((f"{key}_low", low), (f"{key}_high", high))
        else:
            yield key, value


def finite(value: object) -> object:
    """The value with NaN and infinities as null: JSON has neither, and no number is known either way."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): finite(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [finite(item) for item in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)

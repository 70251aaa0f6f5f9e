"""Results of public functions: typed ``rows``, a frame for pandas, and the JSON of the command line."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the JSON answers. 1: the first."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a result: its key in records, its column in tables, its attribute.

    Attributes:
        key: Key in records (JSON, CSV, frames); ``a.b`` reaches into a nested mapping.
        title: Heading of its column; empty: the key.
        unit: Unit in tables: ``ms``, ``s``, ``bytes``, ``count``, ``ratio``, ``share`` of 1, ``key``, ``yes``,
            ``words``,
            ``operators``; empty: plain text; or a function.
        interval: Key of the interval; half of it follows the value.
        spare: True if a table without space leaves the column out.
        path: Attribute of the result with the value, such as ``latency.ms``; None: the key.
        cell: Other key of the cell in the row of a table.
    """

    key: str
    title: str = ""
    unit: str | Callable[[Any], str] = ""
    interval: str | None = None
    spare: bool = False
    path: str | None = None
    cell: str | None = None

    def of(self, result: object) -> object:
        """Return the value in a result; None if a part of the path is None."""
        for name in (self.path or self.key).split("."):
            result = None if result is None else getattr(result, name)
        return result


def fields(words: str) -> list[Field]:
    """Return fields without a column: words ``key``, or ``key=path`` for an attribute of another name."""
    return [Field(key, path=path or None) for key, _, path in (word.partition("=") for word in words.split())]


def record_of(result: object, fields: Iterable[Field]) -> dict[str, object]:
    """Return a result as a JSON object; so are nested results with a ``record``."""
    return {field.key: _recorded(field.of(result)) for field in fields}


def _recorded(value: object) -> object:
    if isinstance(value, tuple) and any(hasattr(item, "record") for item in value):
        return [_recorded(item) for item in value]
    return value.record() if hasattr(value, "record") else value


def columns_of(fields: Iterable[Field], *keys: str) -> list[Field]:
    """Return some fields of a result, in the order of the keys."""
    known = {field.key: field for field in fields}
    return [known[key] for key in keys]


@dataclass(frozen=True, slots=True)
class Records:
    """A result as plain data, with the documented keys.

    Attributes:
        results: One row per result.
        totals: Other keys in JSON.
        flat: Rows of CSV, for example one per layer or kernel; None: the results. A function makes them on demand.
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
    """A result of a public function; subclasses also have ``rows`` and ``complete``.

    Attributes:
        ANSWER: The function that writes the result as text, ``module.function`` in ``analyzer``. It is a name, since
            results of the generator are declared below the analyzer.
    """

    __slots__ = ()
    ANSWER: ClassVar[str]

    @abstractmethod
    def records(self) -> Records:
        """Return the result as plain data."""

    def frame(self, *, inner: bool = False) -> pd.DataFrame:
        """Return a ``pandas.DataFrame`` with a flat row per result, and the keys of JSON as columns.

        Nested values have their own columns (``coverage.macs``). An interval has two (``ci95_ms_low``,
        ``ci95_ms_high``). A list
        stays a list: count it with ``.str.len()``, unfold it with ``explode``.

        Args:
            inner: A row for each layer, brick, kernel, run or finding, as in ``--format csv``; a result without any
                stays a
                row.

        Example:
            >>> estimate(models, store=store).frame().set_index("name")["estimate_ms"]  # doctest: +SKIP
        """
        return self.records().frame(inner=inner)

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``--json``: plain values, and null for unknown numbers.

        Example:
            >>> json.dumps(compare(models, store=store).to_json())  # doctest: +SKIP
        """
        return self.records().to_json()


def nested_rows(whole: Row, name: str, inner: Iterable[Row], *, without: Collection[str]) -> list[dict[str, object]]:
    """Return rows of CSV for the parts of a result: each with the result, and with its own values as ``name.key``.

    Args:
        whole: The result; the only row if there are no parts.
        name: Name of a part.
        inner: The parts.
        without: Keys of the result that these rows leave out.
    """
    kept = {key: value for key, value in whole.items() if key not in without}
    return [kept | {f"{name}.{key}": value for key, value in one.items()} for one in inner] or [kept]


def flattened(row: Row, before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys of a flat row: nested values have their own columns, an interval has two."""
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
    """Return the value with null for NaN and infinities, which JSON does not have."""
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


def as_text(cell: str) -> str:
    """Return a cell of CSV that no spreadsheet takes for a formula: the name of a model may begin like one."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) and len(cell) > 1 else cell

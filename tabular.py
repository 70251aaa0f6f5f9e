"""What every report has: typed ``rows``, a frame for pandas, and the object that the command line prints as JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the JSON answers. 1: the first."""

Row = Mapping[str, object]


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
    totals: Mapping[str, object] = field(default_factory=dict)
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

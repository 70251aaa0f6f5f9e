"""What ``estimate`` returns, and what JSON has of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...constructor.form import Form
from ...constructor.result import Coverage, Estimate, Framing, Interpolation, Missing, SequenceLatency, Term
from ...constructor.roofline.ceilings import Ceiling
from ...constructor.sweep import swept
from ...db.samples.rates import Rate
from ...tabular import Records, Row, Tabular, nested_rows
from ..shell import spelled, why_unbounded, with_command

__all__ = ["Estimates", "estimate_record", "forms_of", "rate_record", "roofline_record"]

_GIGA = 1e9

_EXPLANATION = frozenset({"path", "attribution", "attribution_absolute_ms"})
_UNSPELLED = frozenset({"framing", "roofline", "ratio_remedy", "roofline_remedy"})
"""What a record leaves out: the bricks' roofline has rows of its own, and remedies stand in the reasons."""

_NOT_FLAT = frozenset({"parts", "path", "roofline", "missing", "attribution", "control"})
"""What has rows of its own in JSON, and no place in a row of CSV."""


@dataclass(frozen=True, slots=True)
class Estimates(Tabular):
    """Estimates of some models; iterating goes over its rows.

    Attributes:
        rows: One per model.
    """

    rows: tuple[Estimate, ...]

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def complete(self) -> bool:
        """Whether every brick of every model is measured, or the model is read between sizes at which they are."""
        return all(entry.complete or entry.interpolated is not None for entry in self.rows)

    def records(self, *, explain: bool = False, layers: bool = False) -> Records:
        """One row per model.

        Args:
            explain: Add every sequence (``parts``), the critical path (``path``) and what lies between bricks and model
                (``attribution``).
            layers: Add every brick under the machine's ceilings (``roofline``).
        """
        rows = []
        for entry in self.rows:
            row = estimate_record(entry, explained=explain)
            if explain:
                row |= {"parts": [asdict(part) for part in entry.sequences]}
                row["attribution_reason"] = None if entry.attribution else entry.error or "not every brick is measured"
            if layers:
                row["roofline"] = roofline_record(entry)
            rows.append(row)

        def flat() -> list[Row]:
            return [
                line
                for entry, row in zip(self.rows, rows, strict=True)
                for line in nested_rows(row, "layer", map(asdict, entry.sequences), without=_NOT_FLAT)
            ]

        return Records(rows, {"sweeps": [one.record() for one in swept(self.rows)]}, flat)

    def to_json(self, *, explain: bool = False) -> dict[str, Any]:
        """The estimates as the object that ``--json`` prints.

        Args:
            explain: With all that ``--explain`` and ``--layers`` add.
        """
        return self.records(explain=explain, layers=explain).to_json()


def estimate_record(entry: Estimate, *, explained: bool = True) -> dict[str, Any]:
    """An estimate as a JSON object; ``sequences`` is its length there, the path its rows; without the bricks' roofline.

    Args:
        entry: The estimate.
        explained: With the path, and with what lies between bricks and model.
    """
    left_out = _UNSPELLED if explained else _UNSPELLED | _EXPLANATION
    framing = entry.framing or (Framing(),) * len(entry.control)
    record = {name: value for name, value in _shallow(entry).items() if name not in left_out}
    record |= {
        "dims": dict(entry.dims),
        "bound": dict(entry.bound),
        "coverage": None if entry.coverage is None else _shallow(entry.coverage),
        "ratio_reason": with_command(entry.ratio_reason, entry),
        "benanza_ratio_reason": with_command(entry.benanza_ratio_reason, entry),
        "roofline_reason": why_unbounded(entry),
        "missing": [_formed(one) for one in entry.missing],
        "sequences": len(entry.sequences),
        "interpolated": None if entry.interpolated is None else _interpolation(entry.interpolated),
        "control": [asdict(flow) | asdict(own) for flow, own in zip(entry.control, framing, strict=True)],
    }
    if not explained:
        return record
    terms = {
        name: spelled(_shallow(term), remedy="command") | {"reason": with_command(term.reason, entry)}
        for name, term in (entry.attribution or {}).items()
    }
    attribution = None if entry.attribution is None else terms
    return record | {"path": [_formed(one) for one in entry.path], "attribution": attribution}


def _interpolation(found: Interpolation) -> dict[str, Any]:
    left_out = [asdict(one) | {"error": one.error} for one in found.left_out]
    return asdict(found) | {"left_out": left_out}


def _formed(value: Missing | SequenceLatency) -> dict[str, Any]:
    return spelled(_shallow(value), remedy="command") | {"form": _asdict(value.form)}


def _shallow(value: Estimate | Coverage | Missing | SequenceLatency | Term) -> dict[str, Any]:
    """Its fields by name, as they are: ``dataclasses.asdict`` would copy thousands of sequences."""
    return {name: getattr(value, name) for name in value.__slots__}


def roofline_record(entry: Estimate) -> dict[str, Any] | None:
    """The bricks of an estimate under the roofline, for JSON; None where nothing is stored."""
    if entry.roofline is None:
        return None
    ceilings, forms = entry.roofline.ceilings, forms_of(entry)
    return {
        "dtype": ceilings.dtype,
        "compute": None if ceilings.compute is None else _reached("gflops_s", ceilings.compute),
        "bandwidths": [
            {"working_set": working_set, **_reached("gbytes_s", found)} for working_set, found in ceilings.bandwidths
        ],
        "call_ms": ceilings.call_ms,
        "node_ms": ceilings.node_ms,
        "layers": [asdict(row) | {"form": _asdict(forms.get(row.key))} for row in entry.roofline.layers],
    }


def forms_of(entry: Estimate) -> dict[str, Form | None]:
    """What the first sequence of each brick looks like."""
    return {part.key: part.form for part in reversed(entry.sequences)}


def _asdict(form: Form | None) -> dict[str, Any] | None:
    return None if form is None else asdict(form)


def _reached(name: str, ceiling: Ceiling) -> dict[str, Any]:
    rate = rate_record(name, ceiling.rate)
    return {**rate, "network": ceiling.network, "backend": ceiling.backend, "stack": ceiling.stack}


def rate_record(name: str, rate: Rate | None) -> dict[str, Any]:
    """A rate in 10^9 per second: the best, that of the median, and the interval of that."""
    if rate is None:
        return {name: None, f"usual_{name}": None, f"usual_{name}_ci95": None}
    low, high = rate.ci95
    return {
        name: rate.best / _GIGA,
        f"usual_{name}": rate.usual / _GIGA,
        f"usual_{name}_ci95": (low / _GIGA, high / _GIGA),
    }

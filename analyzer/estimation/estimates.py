"""What ``estimate`` returns, and what JSON has of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from ...constructor.curve import Interpolation
from ...constructor.result import Coverage, Estimate, Form, Framing, Missing, SequenceLatency, Term
from ...constructor.roofline import Ceiling
from ...constructor.sweep import swept
from ...db.samples.rates import Rate
from ...tabular import Records, Row, Tabular, nested_rows
from ..shell import spelled, why_unbounded, with_command

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class EstimateField:
    """A field of an estimate: its key in records, its place in an ``Estimate``, and its column in tables.

    Attributes:
        key: Key in records (JSON, CSV, frames).
        path: The attribute of an estimate that has the value.
        title: Heading of the column; empty if no table has one.
        unit: ``ms``, or ``share`` of 1; empty for counts and words.
        interval: Key of the interval that is written behind the value.
        cell: Key of the cell in the row of a table, if that is another.
        spare: Whether a table that is too wide leaves the column out.
    """

    key: str
    path: str
    title: str = ""
    unit: str = ""
    interval: str | None = None
    cell: str | None = None
    spare: bool = False


FIELDS = (
    EstimateField("name", "name", title="model"),
    EstimateField("granularity", "model.cutting.granularity"),
    EstimateField("graph", "model.cutting.graph"),
    EstimateField("overlap", "model.cutting.overlap"),
    EstimateField("connected", "model.cutting.connected"),
    EstimateField("batch", "model.source.batch"),
    EstimateField("dims", "model.dims"),
    EstimateField("bound", "model.bound"),
    EstimateField("system", "place.system"),
    EstimateField("stack", "place.stack"),
    EstimateField("backend", "place.backend"),
    EstimateField("device", "place.device"),
    EstimateField("threads", "place.threads"),
    EstimateField("cache", "place.cache"),
    EstimateField("level", "model.level"),
    EstimateField("dtype", "place.dtype"),
    EstimateField("layers", "model.layers", title="layers", spare=True),
    EstimateField("folded", "model.folded"),
    EstimateField("unique", "parts.unique", title="unique"),
    EstimateField("estimate_ms", "latency.ms", title="estimate ms ±95%", unit="ms", interval="ci95_ms"),
    EstimateField("ci95_ms", "latency.ci95_ms"),
    EstimateField("calibrated", "latency.calibrated"),
    EstimateField("scatter_calibrated", "latency.scatter_calibrated"),
    EstimateField("sequential_ms", "sums.sequential_ms", title="sequential ms", unit="ms"),
    EstimateField("critical_path_ms", "sums.critical_path_ms", title="critical path ms", unit="ms", spare=True),
    EstimateField("host_ms", "sums.host_ms"),
    EstimateField(
        "lower_bound_sequential_ms",
        "bounds.sequential.ms",
        title="fastest bricks ms",
        unit="ms",
        interval="lower_bound_sequential_ci95_ms",
    ),
    EstimateField("lower_bound_sequential_ci95_ms", "bounds.sequential.ci95_ms"),
    EstimateField("lower_bound_critical_path_ms", "bounds.critical_path.ms"),
    EstimateField("lower_bound_critical_path_ci95_ms", "bounds.critical_path.ci95_ms"),
    EstimateField("benanza_ratio_sequential", "bounds.sequential.ratio"),
    EstimateField("benanza_ratio_sequential_ci95", "bounds.sequential.ratio_ci95"),
    EstimateField("benanza_ratio_critical_path", "bounds.critical_path.ratio"),
    EstimateField("benanza_ratio_critical_path_ci95", "bounds.critical_path.ratio_ci95"),
    EstimateField("undisturbed_ms", "latency.undisturbed_ms", title="undisturbed ms", unit="ms", spare=True),
    EstimateField("measured_ms", "truth.ms", title="measured ms ±95%", unit="ms", interval="measured_ci95_ms"),
    EstimateField("measured_ci95_ms", "truth.ci95_ms"),
    EstimateField("measured_undisturbed_ms", "truth.undisturbed_ms"),
    EstimateField("ratio", "truth.ratio", title="ratio", cell="ratio_within"),
    EstimateField("ratio_ci95", "truth.ratio_ci95"),
    EstimateField("paired", "truth.paired"),
    EstimateField("disturbed", "disturbed"),
    EstimateField("disturbance", "disturbance"),
    EstimateField("quiet", "latency.quiet"),
    EstimateField("ratio_reason", "truth.reason"),
    EstimateField("benanza_ratio_reason", "bounds.reason"),
    EstimateField("benanza_note", "bounds.note"),
    EstimateField("roofline_ms", "roofline.ms"),
    EstimateField("roofline_critical_path_ms", "roofline.critical_path_ms"),
    EstimateField("roofline_headroom", "roofline.headroom"),
    EstimateField("roofline_reason", "roofline.reason"),
    EstimateField("coverage", "parts.coverage", title="coverage", unit="share", cell="coverage.sequences"),
    EstimateField("known_ms", "sums.known_ms"),
    EstimateField("missing", "parts.missing"),
    EstimateField("sequences", "parts.sequences", title="sequences", spare=True),
    EstimateField("control", "model.control"),
    EstimateField("error", "error"),
    EstimateField("interpolated", "parts.interpolated"),
    EstimateField("interpolation_reason", "parts.interpolation_reason"),
    EstimateField("predicted", "parts.predicted"),
    EstimateField("prediction_reason", "parts.prediction_reason"),
)
"""The fields, in the order of a record."""

_KEYS = tuple(field.key for field in FIELDS)

_VALUES = attrgetter(*(field.path for field in FIELDS))

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
        """Whether every brick of every model is measured, read between sizes, or predicted."""
        return all(entry.complete or entry.parts.interpolated or entry.parts.predicted for entry in self.rows)

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
                row |= {"parts": [asdict(part) for part in entry.parts.sequences]}
                row["attribution_reason"] = None if entry.attribution else entry.error or "not every brick is measured"
            if layers:
                row["roofline"] = roofline_record(entry)
            rows.append(row)

        def flat() -> list[Row]:
            return [
                line
                for entry, row in zip(self.rows, rows, strict=True)
                for line in nested_rows(row, "layer", map(asdict, entry.parts.sequences), without=_NOT_FLAT)
            ]

        return Records(rows, {"sweeps": [sweep.record() for sweep in swept(self.rows)]}, flat)

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
    framing = entry.parts.framing or (Framing(),) * len(entry.model.control)
    record = dict(zip(_KEYS, _VALUES(entry), strict=True)) | {
        "coverage": None if entry.parts.coverage is None else _shallow(entry.parts.coverage),
        "ratio_reason": with_command(entry.truth.reason, entry),
        "benanza_ratio_reason": with_command(entry.bounds.reason, entry),
        "roofline_reason": why_unbounded(entry),
        "missing": [_formed(brick) for brick in entry.parts.missing],
        "sequences": len(entry.parts.sequences),
        "interpolated": None if entry.parts.interpolated is None else _interpolation(entry.parts.interpolated),
        "predicted": None if entry.parts.predicted is None else asdict(entry.parts.predicted),
        "control": [asdict(flow) | asdict(own) for flow, own in zip(entry.model.control, framing, strict=True)],
    }
    if not explained:
        return record
    terms = {
        name: spelled(_shallow(term), remedy="command") | {"reason": with_command(term.reason, entry)}
        for name, term in (entry.attribution or {}).items()
    }
    attribution = None if entry.attribution is None else terms
    return record | {
        "attribution": attribution,
        "attribution_absolute_ms": entry.attribution_absolute_ms,
        "path": [_formed(part) for part in entry.parts.path],
    }


def _interpolation(found: Interpolation) -> dict[str, Any]:
    left_out = [asdict(size) | {"error": size.error} for size in found.left_out]
    return asdict(found) | {"left_out": left_out}


def _formed(value: Missing | SequenceLatency) -> dict[str, Any]:
    return spelled(_shallow(value), remedy="command") | {"form": _asdict(value.form)}


def _shallow(value: Coverage | Missing | SequenceLatency | Term) -> dict[str, Any]:
    """Its fields by name, as they are: ``dataclasses.asdict`` would copy thousands of sequences."""
    return {name: getattr(value, name) for name in value.__slots__}


def roofline_record(entry: Estimate) -> dict[str, Any] | None:
    """The bricks of an estimate under the roofline, for JSON; None where nothing is stored."""
    if entry.roofline.bricks is None:
        return None
    ceilings, forms = entry.roofline.bricks.ceilings, forms_of(entry)
    return {
        "dtype": ceilings.dtype,
        "compute": None if ceilings.compute is None else _reached("gflops_s", ceilings.compute),
        "bandwidths": [
            {"working_set": working_set, **_reached("gbytes_s", found)} for working_set, found in ceilings.bandwidths
        ],
        "call_ms": ceilings.call_ms,
        "node_ms": ceilings.node_ms,
        "layers": [asdict(row) | {"form": _asdict(forms.get(row.key))} for row in entry.roofline.bricks.layers],
    }


def forms_of(entry: Estimate) -> dict[str, Form | None]:
    """What the first sequence of each brick looks like."""
    return {part.key: part.form for part in reversed(entry.parts.sequences)}


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

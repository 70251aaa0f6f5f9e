"""The result of ``estimate`` and its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...constructor.curve import Interpolation
from ...constructor.result import Coverage, Estimate, Form, Framing, Missing, SequenceLatency, Term
from ...constructor.roofline import Ceiling
from ...constructor.sweep import swept
from ...db.samples.rates import Rate
from ...tabular import Field, Records, Row, Tabular, nested_rows, record_of
from ..shell import spelled, why_unbounded, with_command

_GIGA = 1e9


FIELDS = (
    Field("name", title="model"),
    Field("granularity", path="model.cutting.granularity"),
    Field("graph", path="model.cutting.graph"),
    Field("overlap", path="model.cutting.overlap"),
    Field("connected", path="model.cutting.connected"),
    Field("batch", path="model.source.batch"),
    Field("dims", path="model.dims"),
    Field("bound", path="model.bound"),
    Field("system", path="place.system"),
    Field("stack", path="place.stack"),
    Field("backend", path="place.backend"),
    Field("device", path="place.device"),
    Field("threads", path="place.threads"),
    Field("cache", path="place.cache"),
    Field("level", path="model.level"),
    Field("dtype", path="place.dtype"),
    Field("layers", path="model.layers", spare=True),
    Field("folded", path="model.folded"),
    Field("unique", path="parts.unique"),
    Field("estimate_ms", path="latency.ms", title="estimate ms ±95%", unit="ms", interval="ci95_ms"),
    Field("ci95_ms", path="latency.ci95_ms"),
    Field("calibrated", path="latency.calibrated"),
    Field("scatter_calibrated", path="latency.scatter_calibrated"),
    Field("sequential_ms", path="sums.sequential_ms", title="sequential ms", unit="ms", spare=True),
    Field("critical_path_ms", path="sums.critical_path_ms", title="critical path ms", unit="ms", spare=True),
    Field("host_ms", path="sums.host_ms"),
    Field(
        "lower_bound_sequential_ms",
        path="bounds.sequential.ms",
        title="fastest bricks ms",
        unit="ms",
        interval="lower_bound_sequential_ci95_ms",
    ),
    Field("lower_bound_sequential_ci95_ms", path="bounds.sequential.ci95_ms"),
    Field("lower_bound_critical_path_ms", path="bounds.critical_path.ms"),
    Field("lower_bound_critical_path_ci95_ms", path="bounds.critical_path.ci95_ms"),
    Field("benanza_ratio_sequential", path="bounds.sequential.ratio"),
    Field("benanza_ratio_sequential_ci95", path="bounds.sequential.ratio_ci95"),
    Field("benanza_ratio_critical_path", path="bounds.critical_path.ratio"),
    Field("benanza_ratio_critical_path_ci95", path="bounds.critical_path.ratio_ci95"),
    Field("undisturbed_ms", path="latency.undisturbed_ms", title="undisturbed estimate ms", unit="ms", spare=True),
    Field("measured_ms", path="truth.ms", title="measured ms ±95%", unit="ms", interval="measured_ci95_ms"),
    Field("measured_ci95_ms", path="truth.ci95_ms"),
    Field("measured_undisturbed_ms", path="truth.undisturbed_ms"),
    Field("ratio", path="truth.ratio", cell="ratio_within"),
    Field("ratio_ci95", path="truth.ratio_ci95"),
    Field("paired", path="truth.paired"),
    Field("disturbed"),
    Field("disturbance"),
    Field("unstable_share"),
    Field("quiet", path="latency.quiet"),
    Field("ratio_reason", path="truth.reason"),
    Field("benanza_ratio_reason", path="bounds.reason"),
    Field("benanza_note", path="bounds.note"),
    Field("roofline_ms", path="roofline.ms"),
    Field("roofline_critical_path_ms", path="roofline.critical_path_ms"),
    Field("roofline_headroom", path="roofline.headroom"),
    Field("roofline_reason", path="roofline.reason"),
    Field("coverage", path="parts.coverage", unit="share", cell="coverage.sequences"),
    Field("known_ms", path="sums.known_ms"),
    Field("missing", path="parts.missing"),
    Field("sequences", path="parts.sequences", spare=True),
    Field("control", path="model.control"),
    Field("error"),
    Field("interpolated", path="parts.interpolated"),
    Field("interpolation_reason", path="parts.interpolation_reason"),
    Field("predicted", path="parts.predicted"),
    Field("prediction_reason", path="parts.prediction_reason"),
)
"""The fields, in the order of a record."""

_NOT_FLAT = frozenset({"parts", "path", "roofline", "missing", "attribution", "control"})
"""Nested fields of the JSON without columns in CSV."""


@dataclass(frozen=True, slots=True)
class Estimates(Tabular):
    """Estimates of some models; iteration yields the rows.

    Attributes:
        rows: One per model.
    """

    ANSWER = "report.answers.estimated.estimates_answer"

    rows: tuple[Estimate, ...]

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def complete(self) -> bool:
        """True if every brick of every model is measured, interpolated or predicted."""
        return all(entry.complete or entry.parts.interpolated or entry.parts.predicted for entry in self.rows)

    def records(self, *, explain: bool = False, layers: bool = False) -> Records:
        """Return one row per model.

        Args:
            explain: Add all sequences (``parts``), the critical path (``path``) and the attribution.
            layers: Add all bricks under the machine's ceilings (``roofline``).
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
        """Return the JSON object of ``--json``.

        Args:
            explain: Add all fields of ``--explain`` and ``--layers``.
        """
        return self.records(explain=explain, layers=explain).to_json()


def estimate_record(entry: Estimate, *, explained: bool = True) -> dict[str, Any]:
    """Return an estimate as a JSON object, with the number of sequences and without the bricks' roofline.

    Args:
        entry: The estimate.
        explained: Add the path and the attribution.
    """
    framing = entry.parts.framing or (Framing(),) * len(entry.model.control)
    record = record_of(entry, FIELDS) | {
        "coverage": None if entry.parts.coverage is None else _shallow(entry.parts.coverage),
        "ratio_reason": with_command(entry.truth.reason, entry),
        "benanza_ratio_reason": with_command(entry.bounds.reason, entry),
        "roofline_reason": why_unbounded(entry),
        "missing": [_formed(brick) for brick in entry.parts.missing],
        "sequences": len(entry.parts.sequences),
        "invented": list(entry.model.invented),
        "interpolated": None if entry.parts.interpolated is None else _interpolation(entry.parts.interpolated),
        "predicted": None if entry.parts.predicted is None else asdict(entry.parts.predicted),
        "control": [asdict(flow) | asdict(frame) for flow, frame in zip(entry.model.control, framing, strict=True)],
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


def _interpolation(interpolation: Interpolation) -> dict[str, Any]:
    left_out = [asdict(size) | {"error": size.error} for size in interpolation.left_out]
    return asdict(interpolation) | {"left_out": left_out}


def _formed(value: Missing | SequenceLatency) -> dict[str, Any]:
    return spelled(_shallow(value), remedy="command") | {"form": _asdict(value.form)}


def _shallow(value: Coverage | Missing | SequenceLatency | Term) -> dict[str, Any]:
    """Return the fields by name without copies; ``dataclasses.asdict`` would copy thousands of sequences."""
    return {name: getattr(value, name) for name in value.__slots__}


def roofline_record(entry: Estimate) -> dict[str, Any] | None:
    """Return the bricks of an estimate under the roofline as JSON; None if nothing is stored."""
    if entry.roofline.bricks is None:
        return None
    ceilings, forms = entry.roofline.bricks.ceilings, forms_of(entry)
    return {
        "dtype": ceilings.dtype,
        "compute": None if ceilings.compute is None else _reached("gflops_s", ceilings.compute),
        "bandwidths": [
            {"working_set": working_set, **_reached("gbytes_s", ceiling)}
            for working_set, ceiling in ceilings.bandwidths
        ],
        "call_ms": ceilings.call_ms,
        "node_ms": ceilings.node_ms,
        "layers": [asdict(row) | {"form": _asdict(forms.get(row.key))} for row in entry.roofline.bricks.layers],
    }


def forms_of(entry: Estimate) -> dict[str, Form | None]:
    """Return the form of the first sequence of each brick."""
    return {part.key: part.form for part in reversed(entry.parts.sequences)}


def _asdict(form: Form | None) -> dict[str, Any] | None:
    return None if form is None else asdict(form)


def _reached(name: str, ceiling: Ceiling) -> dict[str, Any]:
    rate = rate_record(name, ceiling.rate)
    return {**rate, "network": ceiling.network, "backend": ceiling.backend, "stack": ceiling.stack}


def rate_record(name: str, rate: Rate | None) -> dict[str, Any]:
    """Return a rate in 10^9 per second: the best, the median's, and its interval."""
    if rate is None:
        return {name: None, f"usual_{name}": None, f"usual_{name}_ci95": None}
    low, high = rate.ci95
    return {
        name: rate.best / _GIGA,
        f"usual_{name}": rate.usual / _GIGA,
        f"usual_{name}_ci95": (low / _GIGA, high / _GIGA),
    }

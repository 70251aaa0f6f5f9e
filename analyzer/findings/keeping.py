"""Findings kept in the database beside the measurements that they rest on, so that proofs are not run again.

They are found by the model, the measurement of it that their savings are of, and the analyses that were asked: measured
again, it is analysed again, and so it is by a version that has others.
Like decompositions they are private to a database, in no export and no merge; where it cannot be written, nothing is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...db import Measurement, Store
from ...db.decompositions import keep_records, kept_records
from ...db.values import content_key
from ...errors import DatabaseLocked, DatabaseReadOnly
from ..estimation.archive import maker
from .finding import Finding, Proof, Remedy
from .registry import ANALYSES

__all__ = ["keep_findings", "kept_findings"]


def kept_findings(store: Store, truth: Measurement, *, proven: bool) -> tuple[Finding, ...] | None:
    """What was found in a model that was measured; None where that is not kept.

    Args:
        store: The database.
        truth: The measurement of the model.
        proven: Only what was proven as far as it can be; else what was found without proofs will do.
    """
    for part in (_part(truth, proven=True), *(() if proven else (_part(truth, proven=False),))):
        record = kept_records(store, truth.key, [part], maker()).get(part)
        if record is None:
            continue
        try:
            return tuple(_read(one) for one in record["findings"])
        except (KeyError, TypeError, ValueError):
            continue  # damaged: it is analysed again
    return None


def keep_findings(store: Store, truth: Measurement, findings: Sequence[Finding], *, proven: bool) -> None:
    """Keep what was found in a model that was measured.

    Args:
        store: The database.
        truth: The measurement of the model.
        findings: What was found.
        proven: Whether remedies were tried.

    Raises:
        StoreError: The database is damaged, or the disk is full.
    """
    record = {"findings": [asdict(one) for one in findings]}
    try:
        keep_records(store, truth.key, {_part(truth, proven=proven): record}, maker())
    except (DatabaseLocked, DatabaseReadOnly):
        return  # keeping is a convenience


def _part(truth: Measurement, *, proven: bool) -> str:
    asked = content_key([one.name for one in ANALYSES])[:8]
    return f"{'proofs' if proven else 'findings'} {truth.id} {asked}"


def _read(record: Mapping[str, Any]) -> Finding:
    values = dict(record)
    proof = values["proof"]
    values["proof"] = None if proof is None else Proof(**{**proof, "ci95_ms": tuple(proof["ci95_ms"])})
    values["remedy"] = Remedy(**values["remedy"])
    for name in ("layers", "evidence", "keys"):
        values[name] = tuple(values[name])
    values["ci95_ms"] = None if values["ci95_ms"] is None else tuple(values["ci95_ms"])
    return Finding(**values)

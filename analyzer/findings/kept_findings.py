"""Findings of measured models, kept in the user's cache folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...db import Measurement
from ...db.values import content_key
from ...models.cache import keep, kept
from ...version import __version__
from .finding import Finding

# Findings kept in the user's cache folder, so that proofs are not run again.
#
# They are found by the measurement of the model that their savings are of, and the analyses that were asked: measured
# again, it is analysed again, and so it is by a version that has others.


_KEPT, _FILE = "findings", "findings.json"
"""Folder within the cache folder, and the file of an entry."""

_FORMAT = 4
"""Changes whenever findings are written otherwise, or there are other analyses."""


@dataclass(frozen=True, slots=True)
class KeptFindings:
    """The findings of a measured model.

    Attributes:
        findings: The findings.
        untried: What was not tried, in words; empty if everything was.
    """

    findings: tuple[Finding, ...]
    untried: tuple[str, ...] = ()


def kept_findings(truth: Measurement) -> KeptFindings | None:
    """Return the kept findings of a measured model; None without any.

    Args:
        truth: The measurement of the model.
    """
    if (folder := kept(_KEPT, _entry(truth))) is None:
        return None
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=KeptFindings)
    except (OSError, ValueError):
        return None  # damaged: it is analysed again


def keep_findings(truth: Measurement, findings: KeptFindings) -> None:
    """Keep the findings of a measured model, in place of earlier ones.

    Args:
        truth: The measurement of the model.
        findings: The findings.
    """

    def write(folder: Path) -> None:
        (folder / _FILE).write_bytes(msgspec.json.encode(findings))

    keep(_KEPT, _entry(truth), write)


def _entry(truth: Measurement) -> str:
    return content_key([truth.id, __version__, _FORMAT])

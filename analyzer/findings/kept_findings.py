"""Findings of measured models, kept in the user's cache folder."""

from __future__ import annotations

from collections.abc import Sequence
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

_FORMAT = 3
"""Changes whenever findings are written otherwise, or there are other analyses."""


def kept_findings(truth: Measurement, *, proven: bool) -> tuple[Finding, ...] | None:
    """Return the kept findings of a measured model; None without any.

    Args:
        truth: The measurement of the model.
        proven: Only findings with all remedies tried; false: findings without proofs suffice.
    """
    for entry in (_entry(truth, proven=True), *(() if proven else (_entry(truth, proven=False),))):
        if (folder := kept(_KEPT, entry)) is None:
            continue
        try:
            return msgspec.json.decode((folder / _FILE).read_bytes(), type=tuple[Finding, ...])
        except (OSError, ValueError):
            continue  # damaged: it is analysed again
    return None


def keep_findings(truth: Measurement, findings: Sequence[Finding], *, proven: bool) -> None:
    """Keep the findings of a measured model.

    Args:
        truth: The measurement of the model.
        findings: The findings.
        proven: Whether remedies were tried.
    """

    def write(folder: Path) -> None:
        (folder / _FILE).write_bytes(msgspec.json.encode(findings))

    keep(_KEPT, _entry(truth, proven=proven), write)


def _entry(truth: Measurement, *, proven: bool) -> str:
    return content_key([truth.id, proven, __version__, _FORMAT])

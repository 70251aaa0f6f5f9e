"""The manifest of a suite, and reading what may come from anywhere: every field and every size is checked."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from ...errors import SuiteError
from ..graph.boundary import BOUNDARY

__all__ = ["FOLDER", "GRAPHS", "MANIFEST", "MAX_MANIFEST_BYTES", "SCHEMA", "parse_manifest", "read_bounded"]

SCHEMA = 1
"""Version of the manifest."""

MANIFEST = "manifest.json"

GRAPHS = ("source", "fused", "runtime")
"""What bricks can be cut from: the model as it is, along the runtime's fusions, or the graph that it executes."""

FOLDER = "bricks"
"""Where the files of the bricks lie."""

MAX_MANIFEST_BYTES = 1 << 30

_MAX_FOOTPRINT_BYTES = 1 << 62

_HEX64 = re.compile(r"[0-9a-f]{64}")


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a whole file that may be untrusted: a regular file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: It is not there.
        SuiteError: It cannot be read, or is no regular file, or too large.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise SuiteError(f"{path} is not a regular file", remedy="generate the suite again")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise SuiteError(f"{path} is larger than {limit} bytes", remedy="generate the suite again")
    return data


def parse_manifest(folder: Path, data: bytes) -> dict[str, Any]:
    """Check a manifest, every field of it: a suite may come from anywhere.

    Raises:
        SuiteError: It is no manifest of this version.
    """
    try:
        manifest: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SuiteError(f"{folder / MANIFEST} is not JSON", remedy="generate the suite again") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if type(schema) is int and schema > SCHEMA:  # whatever else it holds: only the newer version knows
        raise SuiteError(f"suite {folder} was made by a newer dlbricks (schema {schema})", remedy="update dlbricks")
    if type(schema) is not int or "bricks" not in manifest:
        raise SuiteError(f"{folder} is not a suite of dlbricks", remedy="'dlbricks generate' makes one")
    if not _well_formed(manifest):
        raise SuiteError(f"{folder / MANIFEST} is damaged", remedy="generate the suite again")
    return manifest


def _well_formed(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has all fields, each of its type, and its bricks sorted and each once."""
    granularity, bricks = manifest.get("granularity"), manifest["bricks"]
    if type(granularity) is not int or granularity < 1 or not isinstance(bricks, list):
        return False
    if not all(isinstance(manifest.get(name), bool) for name in ("overlap", "connected")):
        return False
    keys = []
    for entry in bricks:
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            return False
        # A key becomes a file name: nothing but hexadecimal digits may pass here.
        if not all(_HEX64.fullmatch(str(entry.get(name))) for name in ("key", "sha256")):
            return False
        keys.append(entry["key"])
    return keys == sorted(set(keys)) and _well_described(manifest)


def _well_described(manifest: dict[str, Any]) -> bool:
    """Whether what a manifest may hold besides is as it should be."""
    return (
        manifest.get("graph", "source") in GRAPHS
        and isinstance(manifest.get("bound_to", ""), str)
        and all(_are_levels(entry.get("distances", [])) for entry in manifest["bricks"])
        and all(_are_variants(entry.get("boundary", [])) for entry in manifest["bricks"])
        and _counts_occurrences(manifest.get("annotations"))
        and _are_levels_by_name(manifest.get("levels", {}))
    )


def _are_levels(distances: object) -> bool:
    """Whether these are footprints; earlier versions had more classes of them."""
    return isinstance(distances, list) and all(
        type(distance) is int and 0 < distance <= _MAX_FOOTPRINT_BYTES for distance in distances
    )


def _are_levels_by_name(levels: object) -> bool:
    return isinstance(levels, dict) and _are_levels(list(levels.values()))


def _are_variants(boundary: object) -> bool:
    return isinstance(boundary, list) and all(variant in BOUNDARY for variant in boundary)


def _counts_occurrences(annotations: object) -> bool:
    """Whether annotations, if there are any, map names to counts by brick."""
    if annotations is None:
        return True
    return isinstance(annotations, dict) and all(
        isinstance(counts, dict) and all(type(count) is int for count in counts.values())
        for counts in annotations.values()
    )

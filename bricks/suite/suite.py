"""A suite: the folder of bricks that is carried to the machine where they are measured.

::

    SUITE/manifest.json         schema, granularity, how it was cut, and each brick's key, digest and size
    SUITE/bricks/<key>.onnx     one small ONNX file per brick

Sorted by key, without names or times: the same bricks give the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import MissingBrick, SuiteError, TamperedBrick
from ..graph.footprint import REPEAT_LEVELS, REUSE_LEVELS, level_of
from .brick import MAX_BRICK_BYTES, Brick, load_brick
from .manifest import FOLDER, MANIFEST, MAX_MANIFEST_BYTES, parse_manifest, read_bounded

__all__ = ["Suite"]


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of bricks on disk.

    Attributes:
        path: Its folder.
        granularity: G of the bricks.
        overlap: Whether they were cut at every offset.
        connected: Whether weakly connected windows were accepted.
        keys: Keys of the bricks, sorted.
        hash: SHA-256 of the manifest, which holds the digest of every brick file: names the suite's content.
        annotations: Where asked for when it was made: model name to the number of occurrences by brick key.
        graph: Which graphs its bricks were cut from: ``source``, ``fused`` or ``runtime``.
        bound_to: What bricks of executed graphs belong to, a stack and an instruction set; None for others.
        levels: Where it has annotations: model name to the footprint class, in bytes, of the graph that was cut.
    """

    path: Path
    granularity: int
    overlap: bool
    connected: bool
    keys: tuple[str, ...]
    hash: str
    annotations: Mapping[str, Mapping[str, int]] | None
    _digests: Mapping[str, tuple[str, int]] = field(repr=False, compare=False)
    graph: str = "source"
    bound_to: str | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    _distances: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    _boundary: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> Suite:
        """Read the manifest of a suite; bricks are read when asked for.

        Raises:
            SuiteError: It is not there or cannot be read, or dlbricks did not make it, or a newer version did.
        """
        folder = Path(path)
        try:
            data = read_bounded(folder / MANIFEST, MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise SuiteError(f"{folder} is not a suite: it has no {MANIFEST}", remedy="give its folder") from error
        manifest = parse_manifest(folder, data)
        entries = {entry["key"]: (entry["sha256"], entry["bytes"]) for entry in manifest["bricks"]}
        return cls(
            path=folder,
            granularity=manifest["granularity"],
            overlap=manifest["overlap"],
            connected=manifest["connected"],
            keys=tuple(entries),
            hash=hashlib.sha256(data).hexdigest(),
            annotations=manifest.get("annotations"),
            _digests=entries,
            graph=manifest.get("graph", "source"),
            bound_to=manifest.get("bound_to"),
            levels=manifest.get("levels", {}),
            _distances={entry["key"]: tuple(entry.get("distances", ())) for entry in manifest["bricks"]},
            _boundary={entry["key"]: tuple(entry.get("boundary", ())) for entry in manifest["bricks"]},
        )

    def footprints(self, key: str) -> tuple[int, ...]:
        """Footprint classes, in bytes, to measure a brick in: of the models that hold it, and of their iterations.

        Where that is not noted, all classes of models.
        """
        noted = self._distances.get(key)
        if not noted:
            return REUSE_LEVELS
        return tuple(sorted({size if size in REPEAT_LEVELS else level_of(size) for size in noted}))

    def boundary(self, key: str) -> tuple[str, ...]:
        """Variants to measure a brick in besides, since it stands where a model begins or ends (``graph.boundary``)."""
        return self._boundary.get(key, ())

    def brick_path(self, key: str) -> Path:
        """Where the file of a brick lies.

        Raises:
            MissingBrick: The suite has no such brick.
        """
        if key not in self._digests:
            raise MissingBrick(f"suite {self.path} has no brick {key}", remedy="'dlbricks brick list' names them")
        return self.path / FOLDER / f"{key}.onnx"

    def brick(self, key: str) -> Brick:
        """Read a brick and verify it against the manifest and against its own key.

        Raises:
            MissingBrick: The suite has no such brick, or its file is not there.
            TamperedBrick: The file is not the one that the manifest names, or its key is not its name.
            SuiteError: It cannot be read.
        """
        path = self.brick_path(key)
        digest, size = self._digests[key]
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise SuiteError(f"{path} is a link out of the suite", remedy="generate the suite again")
        try:
            data = read_bounded(path, MAX_BRICK_BYTES)
        except FileNotFoundError as error:
            raise MissingBrick(
                f"suite {self.path} lacks the file of brick {key}", remedy="generate the suite again"
            ) from error
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise TamperedBrick(
                f"{path} is not the file that the suite's manifest names", remedy="generate the suite again"
            )
        return load_brick(data, expected=key)

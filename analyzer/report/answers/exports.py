"""What the exporting commands answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....bricks.suite.suite import Suite
from ....errors import DlbricksError, UsageError
from ....generator.network import export
from ....models import ModelSource
from ..tables import Answer, Column
from ..units import size
from .bricks import find_key

__all__ = ["export_brick", "export_models"]


def export_brick(beginning: str, suite: Path, out: Path | None, *, seed: int, force: bool = False) -> Answer:
    """Write one brick.

    Args:
        beginning: Of its key.
        suite: Folder of the suite that holds it.
        out: File to write; None: ``<key>.onnx`` in the working folder.
        seed: Of the weights.
        force: Replace a file that is there.

    Raises:
        UsageError: The key is ambiguous, or the file exists.
        SuiteError: The suite or the brick is not there or not what it says.
        OSError: The file cannot be written.
    """
    opened = Suite.open(suite)
    key = find_key(beginning, opened.keys, f"suite {suite}")
    path = out or Path(f"{key}.onnx")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", remedy="name a new file, or give --force")
    written = export.export_brick(opened.brick(key), path, seed=seed)
    row = {"key": key, "file": str(path), "bytes": written, "seed": seed}
    return Answer([row], summary=[f"{path}: {size(written)}"])


def export_models(
    sources: Sequence[ModelSource],
    folder: Path,
    *,
    force: bool = False,
    opened: bool = False,
    attention: bool = False,
    weights: str | None = None,
) -> tuple[Answer, bool]:
    """Write models of the zoo into a folder.

    Args:
        sources: Models of the zoo.
        folder: Where to; made where it is missing.
        force: Replace files that are there and hold something else: a model's own weights, say.
        opened: Leave lengths of decoders with a cache open.
        attention: Make attention one operator.
        weights: What weights of products are stored in; None: as they are.

    Returns:
        One row per model, and whether all of them were written.

    Raises:
        UsageError: A name is that of a file: it is ONNX already; or dimensions are both given and left open.
        OSError: A file cannot be written.
    """
    for source in sources:
        if source.path is not None:
            raise UsageError(f"{source.name} is no model of the zoo", remedy="'dlbricks models list' names them")
    if opened and any(source.dims for source in sources):
        raise UsageError("--dim gives what --open leaves open", remedy="leave one of them out")
    rows: list[dict[str, object]] = []
    for source in sources:
        path = folder / f"{source.name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            written = export.export_model(
                source, path, force=force, opened=opened, attention=attention, weights=weights
            )
        except DlbricksError as error:
            rows.append({"name": source.name, "file": None, "bytes": None, "error": str(error)})
        else:
            rows.append({"name": source.name, "file": str(path), "bytes": written, "error": None})
    answer = Answer(
        rows,
        columns=[Column("name", "model"), Column("file", "file"), Column("bytes", "size", size)],
        summary=[f"{row['name']}: {row['error']}" for row in rows if row["error"]],
    )
    return answer, all(row["error"] is None for row in rows)

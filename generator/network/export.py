"""Bricks and models as self-contained ONNX files with seeded weights, for any other tool."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import onnx

from ...bricks.suite.brick import Brick
from ...errors import UsageError
from ...models import ModelSource
from ...models.zoo import open_structure
from .deployed import with_attention, with_weights
from .network import export_network, export_open_network

__all__ = ["export_brick", "export_model", "write_file"]


def export_brick(brick: Brick, path: str | os.PathLike[str], *, seed: int = 0) -> int:
    """Write a brick with the weights and in the form that the runner gives it.

    Args:
        brick: The brick.
        path: File to write; it appears complete or not at all.
        seed: Of the weights.

    Returns:
        Bytes written.

    Raises:
        BackendError: It cannot be assembled, or is larger than a protobuf can be.
        OSError: The file cannot be written.
    """
    return write_file(Path(path), export_network(onnx.load_from_string(brick.model), seed))


def export_model(
    source: ModelSource,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    force: bool = False,
    opened: bool = False,
    attention: bool = False,
    weights: str | None = None,
) -> int:
    """Write a model of the zoo with synthetic weights.

    Args:
        source: A model of the zoo (``find_models``).
        path: File to write; it appears complete or not at all.
        seed: Of the weights.
        force: Replace another file that is there.
        opened: Leave its lengths open, so that a loop can execute it; decoders with a cache only.
        attention: Make attention one operator (``deployed``).
        weights: Have its quantizer store the weights of products in this; None: as they are.

    Returns:
        Bytes written.

    Raises:
        ModelError: There is no such model, or it cannot be bound, or left open.
        BackendError: It cannot be assembled, or is larger than a protobuf can be; there is no such attention, or no
            such product, in it.
        UsageError: Another file is there.
        OSError: The file cannot be written.
    """
    path = Path(path)
    if opened and source.zoo is not None:
        data = export_open_network(open_structure(source.zoo, batch=source.batch), seed)
    else:
        data = export_network(source.skeleton().model, seed)
    if attention:
        data = with_attention(data)
    if weights is not None:
        data = with_weights(data, weights)
    if not force and path.exists() and path.read_bytes() != data:
        raise UsageError(f"{path} exists already and is another file", remedy="name a new folder, or give --force")
    return write_file(path, data)


def write_file(path: Path, data: bytes) -> int:
    """Write a file that appears complete or not at all; the bytes written.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the user knows no partial file
    finally:
        partial.unlink(missing_ok=True)
    return len(data)

"""Workers, and what is asked of them, in the few words that a test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbricks.db.values import Runtime
from dlbricks.generator.worker.client import MODEL_MEMORY_BYTES, Worker, start_worker
from dlbricks.generator.worker.messages import Load, NetworkFile, PackMember, Place

UNPINNED = {"pinning": "off"}
"""Of every backend with that option: tests run side by side."""


def place(
    backend: str = "onnxruntime",
    options: Mapping[str, str] = UNPINNED,
    *,
    device: str = "cpu",
    threads: int = 1,
    dtype: str = "float32",
    together: bool = False,
    command: Sequence[str] | None = None,
) -> Place:
    """Where a worker runs."""
    runtime = Runtime.of(backend, device, options)
    return Place(runtime, threads, dtype, together, None if command is None else tuple(command))


def start(
    backend: str = "onnxruntime",
    options: Mapping[str, str] = UNPINNED,
    *,
    memory_bytes: int = MODEL_MEMORY_BYTES,
    **more: Any,
) -> Worker:
    """A worker, greeted."""
    return start_worker(place(backend, options, **more), memory_bytes)


def file(path: Path | str, *, synthetic: bool = True, **more: Any) -> NetworkFile:
    """A network in a file."""
    return NetworkFile(path=str(path), synthetic=synthetic, **more)


def network(name: str, path: Path | str, *, unroll: int = 1, **more: Any) -> Load:
    """What loads a network."""
    return Load(id=name, members=(PackMember(name, file(path, **more)),), unroll=unroll)


def pack(
    files: Mapping[str, Path], *names: str, name: str = "p", copies: int = 1, memory_reuse: bool = True, **more: Any
) -> Load:
    """What loads a pack of some of the files, or of all, in the order given."""
    members = tuple(PackMember(one, file(files[one], **more), copies) for one in names or files)
    return Load(id=name, members=members, packed=True, memory_reuse=memory_reuse)

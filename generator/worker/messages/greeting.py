"""What parent and worker say first: part of ``protocol``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ....db.values import Stack
from .message import Reply, Request

__all__ = ["Greeting", "Hello", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    Attributes:
        memory_bytes: Private memory of the worker above what it holds when the backend is loaded; None: no limit.
    """

    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hello(Request):
    """First request: which runtime, set up how.

    Attributes:
        backend: Name of the entry point in the group ``dlbricks.backends``.
        device: ``cpu`` or ``cuda``.
        options: The backend's own options, checked by it.
        threads: Threads of the runtime; 0 means all physical cores that this process may use.
        limits: Memory limit.
        together: Whether many networks will be visited in turn: they then share threads.
        dtype: Precision that networks are computed in; ``float32``: that of each network itself.
        libraries: Digest to path of the libraries of custom operators that the options name.
    """

    op: ClassVar[str] = "hello"

    backend: str
    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    together: bool = False
    dtype: str = "float32"
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Greeting(Reply):
    """Reply to ``Hello``.

    Attributes:
        stack: Backend, device, versions and every option with its effective value.
        threads: Effective number of threads.
        pid: Process that the networks run in.
    """

    stack: Stack
    threads: int
    pid: int

"""What parent and worker say about the kernels that run for a network: part of ``protocol``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....db.values import Kernel, KernelView
from .message import Reply, Request

__all__ = ["Profile", "Profiled"]


@dataclass(frozen=True, slots=True)
class Profile(Request):
    """Load a network, run it under the runtime's profiler, and drop it.

    Attributes:
        path: As for ``Prepare``.
        synthetic: As for ``Prepare``.
        executions: How many to profile, after one that warms up.
        overrides: As for ``Prepare``.
        inputs: As for ``Prepare``.
        seed: As for ``Prepare``.
        as_is: As for ``Prepare``.
        variant: The name of one of the backend's algorithms; empty: as it is.
    """

    op: ClassVar[str] = "profile"

    path: str
    synthetic: bool
    executions: int
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0
    as_is: bool = False
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Profiled(Reply):
    """Reply to ``Profile``: a kernel view.

    Attributes:
        kernels: As in ``KernelView``, and so is the rest.
        wall_ns: Of one execution.
        executions: How many were profiled.
        source: Which profiler.
    """

    kernels: tuple[Kernel, ...]
    wall_ns: int
    executions: int
    source: str

    @classmethod
    def of(cls, view: KernelView) -> Profiled:
        """The reply that carries a view."""
        return cls(view.kernels, view.wall_ns, view.executions, view.source)

    @property
    def view(self) -> KernelView:
        """The view that it carries."""
        return KernelView(self.kernels, self.wall_ns, self.executions, self.source)

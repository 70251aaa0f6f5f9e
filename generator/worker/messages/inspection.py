"""What parent and worker say about the inside of a network: the kernels that run, and what values do to its layers.

Part of ``protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ....db.values import Kernel, KernelView
from .message import Reply, Request

__all__ = ["Examine", "Examined", "LayerEffect", "Profile", "Profiled", "Trace", "Traced"]


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


@dataclass(frozen=True, slots=True)
class Trace(Request):
    """Load a network as it stands, run it once, and count how often each of its nodes is executed.

    Attributes:
        path: As for ``Prepare``.
        synthetic: As for ``Prepare``.
        overrides: As for ``Prepare``.
        inputs: As for ``Prepare``.
        seed: As for ``Prepare``.
    """

    op: ClassVar[str] = "trace"

    path: str
    synthetic: bool
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Traced(Reply):
    """Reply to ``Trace``.

    Attributes:
        calls: Executions of each node by its name, those in bodies of control flow too.
    """

    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Examine(Request):
    """Execute the graph that the runtime executes for a model, and time each layer on the way.

    Each is timed with the values that it has there, and with those that it has as a brick.

    Attributes:
        path: As for ``Prepare``.
        synthetic: As for ``Prepare``.
        rounds: Differences per layer.
        overrides: As for ``Prepare``.
        inputs: As for ``Prepare``.
        seed: As for ``Prepare``.
    """

    op: ClassVar[str] = "examine"

    path: str
    synthetic: bool
    rounds: int
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LayerEffect:
    """One layer with the model's own values and with synthetic ones.

    Attributes:
        index: Of the layer, in the executed graph's order.
        op_type: Its operator.
        subnormal_in: Share of subnormal numbers among the floating ones that it reads.
        subnormal_out: Among those that it writes.
        own_ns: Median latency with the model's own values.
        synthetic_ns: With those of a brick.
        differences_ns: Per round, by how much it is longer with its own values.
    """

    index: int
    op_type: str
    subnormal_in: float
    subnormal_out: float
    own_ns: float
    synthetic_ns: float
    differences_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Examined(Reply):
    """Reply to ``Examine``.

    Attributes:
        layers: Every layer that reads what is computed from the model's inputs.
    """

    layers: tuple[LayerEffect, ...]

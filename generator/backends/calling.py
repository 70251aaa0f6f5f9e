"""Backends that load every brick by itself, and are called for one after the other: the cache mode ``model``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from ..device.device import Device, Run
from ..device.opening import open_device
from ..network.network import Network
from .base import Settings
from .package import PackagedBackend
from .streams import StreamedExecutable

__all__ = ["CallingBackend"]


class CallingBackend(PackagedBackend):
    """The part of a backend that is the same wherever a call runs one brick (see ``StreamBackend``).

    What the runtime optimises, it does when a brick is loaded, and for that brick alone: nothing is shared with others.
    """

    @abstractmethod
    def prepare(self, network: Network, settings: Settings) -> StreamedExecutable:
        """Load a network (see ``Backend``)."""

    def in_turn(self, options: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Always: each brick is a call of its own (see ``OptimisingBackend``)."""
        return True

    def optimised(self, network: Network, settings: Settings) -> Network:  # noqa: ARG002
        """The network itself (see ``OptimisingBackend``)."""
        return replace(network, as_is=True)

    def device(self, settings: Settings) -> Device:
        """On the CPU the cores that the process is bound to (see ``StreamBackend``)."""
        bound = settings.options.get("pinning") == "on"
        return open_device(settings.device, settings.cores[: settings.threads] if bound else ())

    def captured(self, run: Run, settings: Settings) -> Run:  # noqa: ARG002
        """The pass itself (see ``StreamBackend``)."""
        return run

    def prepare_streamed(self, network: Network, settings: Settings) -> StreamedExecutable:
        """As ``prepare`` (see ``StreamBackend``)."""
        return self.prepare(network, settings)

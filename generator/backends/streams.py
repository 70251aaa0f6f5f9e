"""Backends that enqueue in the stream of a device."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol, runtime_checkable

from ..device.device import Device, Run
from ..network.network import Network
from .base import Executable, OptimisingBackend, Settings

__all__ = ["SharingExecutable", "StreamBackend", "StreamedExecutable"]


class StreamedExecutable(Executable, Protocol):
    """A network of a pass of bricks: ``run`` only enqueues in the stream of a device."""

    def refresh(self) -> None:
        """Enqueue what writes the inputs again, as the layer before does in a model; their values stay."""


@runtime_checkable
class SharingExecutable(Protocol):
    """A network that can read its inputs from memory that other networks of a pass read theirs from."""

    def share(self, known: MutableMapping[object, Any]) -> None:
        """Use the inputs that are known of the same form, in place of its own; add those that are not.

        On a GPU alone, where the values of large inputs make no difference to a time.
        """


@runtime_checkable
class StreamBackend(OptimisingBackend, Protocol):
    """A backend that enqueues in the stream of a device, where events between bricks measure their times."""

    def device(self, settings: Settings) -> Device:
        """The device of this process; after ``setup``."""

    def prepare_streamed(self, network: Network, settings: Settings) -> StreamedExecutable:
        """Load a network of a pass, and run it as often as it must be run before it can be captured.

        Raises as ``prepare``.
        """

    def captured(self, run: Run, settings: Settings) -> Run:
        """A pass as the options have it: as one launch of what ``run`` enqueues, or ``run`` itself.

        Raises:
            BackendError: It cannot be captured.
        """

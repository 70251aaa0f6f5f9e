"""Backends whose runtime is a package: what is known of it without loading it."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from ...db.values import NATIVE, Stack
from ...errors import BackendUnavailable, UsageError
from .base import WORKER_COMMAND, Availability, Backend, Option

__all__ = ["PackagedBackend", "installed"]


class PackagedBackend(Backend):
    """The part of a backend that is read from the metadata of packages (see ``Backend``).

    Attributes:
        name: Of the backend.
        devices: Where it can run.
        dtypes: Precisions that it can compute in.
        module: What is imported to use the runtime.
        distributions: Packages that bring it; which one is installed decides the latency.
        install: What installs it.
    """

    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = (NATIVE,)
    module: str
    distributions: tuple[str, ...]
    install: str

    @abstractmethod
    def declared(self, device: str) -> Sequence[Option]:
        """The options that it has on a device."""

    def missing(self, device: str) -> str:  # noqa: ARG002
        """What is missing to run on a device, in one line; empty where nothing is known to be. Loads nothing."""
        return ""

    def versions(self) -> tuple[tuple[str, str], ...]:
        """The installed packages of ``distributions`` with their versions, sorted; empty where there is none."""
        if importlib.util.find_spec(self.module) is None:
            return ()
        return installed(self.distributions)

    def probe(self) -> Availability:
        """Whether the module and its package are installed (see ``Backend``)."""
        found = self.versions()
        if not found:
            return Availability(ok=False, reason=f"not installed; {self.install}")
        missing = {device: lack for device in self.devices if (lack := self.missing(device))}
        return Availability(ok=True, versions=dict(found), missing=missing)

    def command(self) -> Sequence[str]:
        """It runs in the environment of dlbricks itself (see ``Backend``)."""
        return WORKER_COMMAND

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        """Every option with its effective value (see ``Backend``)."""
        return _resolved(self, self.declared(device), device, options)

    def stack(self, device: str, options: Mapping[str, str]) -> Stack:
        """Versions are those of the installed packages; the runtime is not loaded (see ``Backend``)."""
        effective = self.resolve(device, options)
        found = self.versions()
        if not found:
            raise BackendUnavailable(f"{self.name} is not installed", remedy=self.install)
        return Stack(self.name, device, found, tuple(sorted(effective.items())))


def installed(distributions: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Those packages that are installed, with their versions, sorted."""
    found = []
    for distribution in distributions:
        try:
            found.append((distribution, version(distribution)))
        except PackageNotFoundError:
            continue
    return tuple(sorted(found))


def _resolved(backend: Backend, declared: Sequence[Option], device: str, given: Mapping[str, str]) -> dict[str, str]:
    """Check a device and options against what a backend declares, and fill in the defaults.

    Raises:
        UsageError: Something is unknown or wrong; the message lists what is valid.
    """
    if device not in backend.devices:
        raise UsageError(
            f"backend {backend.name} has no device {device!r}", remedy=f"it has {', '.join(backend.devices)}"
        )
    known = {option.name: option for option in declared}
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"backend {backend.name} has no option {name!r}",
                remedy=f"it has {', '.join(str(option) for option in declared)}",
            )
        if not known[name].accepts(value):
            raise UsageError(
                f"option {name} of backend {backend.name} cannot be {value!r}", remedy=f"use {known[name]}"
            )
    values = {option: given.get(option.name, option.default) for option in declared}
    return {option.name: value for option, value in values.items() if not option.later or value != option.default}

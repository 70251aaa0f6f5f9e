"""Bricks in the form that the runtime executes, found for as many at once as there can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....db.values import NATIVE
from ....errors import BackendError
from ...backends.base import OptimisingBackend, Settings, is_packing
from ...network.network import Network
from ...network.packed import grouped, parted, united

__all__ = ["Executed", "executed_bricks"]


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """A brick in the form that the runtime executes.

    Attributes:
        network: Its network, to be run as it stands.
        edges: Places of the layout changes at its edges.
        boundary: Which of ``BOUNDARY`` it is; empty where it stands inside of a model.
    """

    network: Network
    edges: frozenset[int] = frozenset()
    boundary: str = ""


def executed_bricks(
    networks: Mapping[str, Network], backend: OptimisingBackend, settings: Settings
) -> tuple[dict[str, Executed], dict[str, BackendError]]:
    """Bring bricks into the form that the runtime executes, as many at once as there can be.

    Args:
        networks: By the brick's id.
        backend: The runtime.
        settings: How it is set up.

    Returns:
        What could be brought there, and why others could not.

    Raises:
        MemoryError: There was not enough memory.
    """
    found: dict[str, Executed] = {}
    refused: dict[str, BackendError] = {}
    names = [name for name, network in networks.items() if not network.as_is]
    found |= {name: Executed(network) for name, network in networks.items() if network.as_is}
    together = is_packing(backend, settings) and settings.dtype == NATIVE
    groups = grouped([networks[name] for name in names]) if together else []
    waiting = [[names[place] for place in places] for places in groups]
    known = {name for group in waiting for name in group}
    waiting += [[name] for name in names if name not in known]
    while waiting:
        group = waiting.pop()
        try:
            optimised = _optimised([networks[name] for name in group], backend, settings)
        except BackendError as error:
            if len(group) == 1:
                refused[group[0]] = error
            else:
                waiting += [group[: len(group) // 2], group[len(group) // 2 :]]
            continue
        edges = backend.edges if is_packing(backend, settings) else _none
        found |= {name: Executed(one, edges(one)) for name, one in zip(group, optimised, strict=True)}
    return found, refused


def _none(_: Network) -> frozenset[int]:
    return frozenset()


def _optimised(networks: Sequence[Network], backend: OptimisingBackend, settings: Settings) -> list[Network]:
    optimised = backend.optimised_bricks if is_packing(backend, settings) else backend.optimised
    if len(networks) == 1:
        return [optimised(networks[0], settings)]
    return parted(optimised(united(networks), settings), networks)

"""Network namespaces for ``benchmarks/fleet.py``: one for all of it, and one for each node, with a wire between.

The namespaces vanish with the processes in them, and nothing of the machine's own network is touched. Root may make
them where its container allows that; where not, nodes share the machine's network.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

__all__ = ["PLACES", "Wire", "isolate"]

PLACES = "10.213.0.0/16"
"""Addresses of both ends of all wires."""

_CLONE_NEWNET = 0x40000000


def isolate() -> str:
    """Move this process, and those that it will start, into a network namespace; why not, or nothing.

    Its only thread calls it, before it starts anything.
    """
    if not sys.platform.startswith("linux") or shutil.which("ip") is None:
        return "there is no iproute2 here"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        return f"this process may not make one ({os.strerror(ctypes.get_errno())})"
    try:
        _ip("link", "set", "lo", "up")
        Wire("probe", 255).cut()
    except subprocess.CalledProcessError as error:
        return f"this process may not make one ({error.stderr.strip()})"
    return ""


class Wire:
    """A node's namespace, and a pair of virtual network cards between it and ours.

    Args:
        name: Of the node.
        number: Below 256, another one for each.
    """

    def __init__(self, name: str, number: int) -> None:
        self._name, self._ours = f"dlbricks-{os.getpid()}-{name}", f"wire{number}"
        self.host = f"10.213.{number}.1"
        _ip("netns", "add", self._name)
        _ip("link", "add", self._ours, "type", "veth", "peer", "name", "wire", "netns", self._name)
        _ip("addr", "add", f"{self.host}/30", "dev", self._ours)
        _ip("link", "set", self._ours, "up")
        _ip("-n", self._name, "addr", "add", f"10.213.{number}.2/30", "dev", "wire")
        for card in ("wire", "lo"):
            _ip("-n", self._name, "link", "set", card, "up")

    @property
    def inside(self) -> list[str]:
        """What a command begins with that is to run in the node's namespace, as the same process."""
        return ["ip", "netns", "exec", self._name]

    def set(self, state: str) -> None:
        """Take our card ``down``, or put it ``up`` again: what is sent meanwhile is lost, and nobody is told."""
        _ip("link", "set", self._ours, state)

    def cut(self) -> None:
        """Remove both cards, and the namespace."""
        _ip("link", "del", self._ours)
        _ip("netns", "del", self._name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

"""Nodes in network namespaces: each reaches us over its wire, and not while that is down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

_PLAY = """
import socket, subprocess, sys
from fleet_network import Wire, isolate
shared = isolate()
if shared:
    print("shared:", shared)
    raise SystemExit
wires = [Wire(f"node{number}", number) for number in range(2)]
listening = socket.create_server(("0.0.0.0", 0))
port = listening.getsockname()[1]
connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5); print('met')"
def met(wire, host):
    words = [*wire.inside, sys.executable, "-S", "-c", connect, host, str(port)]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() == "met"
def both():
    return [met(wire, wire.host) for wire in wires]
print(both(), met(wires[0], "127.0.0.1"))
wires[0].set("down")
print(both())
wires[0].set("up")
print(both())
for wire in wires:
    wire.cut()
print(subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout.count("wire"))
"""


def test_a_wire_is_the_only_way_and_can_be_taken_down():
    done = subprocess.run(
        [sys.executable, "-c", _PLAY], capture_output=True, text=True, check=True, cwd=_BENCHMARKS, timeout=60
    )
    if done.stdout.startswith("shared:"):
        pytest.skip(f"root may make network namespaces where its container allows it: {done.stdout}")

    reached, down, up, left = done.stdout.splitlines()

    assert reached == "[True, True] False"
    assert down == "[False, True]"
    assert up == "[True, True]"
    assert left == "0"

"""Physical cores and cache sizes, read from a system's description."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.generator.machine import cores
from dlbricks.generator.machine.system import topology_notes
from hypothesis import given
from hypothesis import strategies as st


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_hyperthreads_of_a_core_count_once(tmp_path, monkeypatch):
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    root = write(tmp_path, {f"cpu{cpu}/topology/thread_siblings_list": text for cpu, text in siblings.items()})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})

    assert cores.physical_cores(root) == (1, 2)
    assert cores.physical_cores(root / "nothing") == (1, 2, 3)  # without a topology every processor is one


def test_cache_sizes_are_those_of_data(tmp_path):
    root = write(
        tmp_path,
        {
            "cpu0/cache/index0/level": "1", "cpu0/cache/index0/type": "Data", "cpu0/cache/index0/size": "48K",
            "cpu0/cache/index1/level": "1", "cpu0/cache/index1/type": "Instruction", "cpu0/cache/index1/size": "64K",
            "cpu0/cache/index2/level": "2", "cpu0/cache/index2/type": "Unified", "cpu0/cache/index2/size": "2048K",
            "cpu0/cache/index3/level": "3", "cpu0/cache/index3/type": "Unified", "cpu0/cache/index3/size": "260M",
        },
    )  # fmt: skip

    assert cores.private_cache_bytes(root) == 2 << 20
    assert cores.last_level_bytes(root) == 260 << 20
    nothing = root / "nothing"  # then it is guessed
    assert cores.private_cache_bytes(nothing) == cores.last_level_bytes(nothing) == 1 << 20


def machine(root: Path, cpus: dict[int, dict[str, str]], more: dict[str, str] | None = None) -> Path:
    """A simulated ``/sys/devices``: files of each processor, and others; the path of its processors."""
    for cpu, files in cpus.items():
        write(root, {f"system/cpu/cpu{cpu}/{name}": text for name, text in files.items()})
    write(root, more or {})
    return root / "system/cpu"


def test_two_sockets_give_the_cores_of_the_first(tmp_path, monkeypatch):
    cpus = {cpu: {f"node{cpu // 4 % 2}/cpulist": "", "topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}"}
            for cpu in range(16)}  # fmt: skip
    root = machine(tmp_path, cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    assert cores.physical_cores(root) == (0, 1, 2, 3)
    assert cores.all_cores(root) == tuple(range(8))
    (note,) = [note for note in topology_notes(root) if "socket" in note]
    assert "threads run on 4 of 8, the fastest of one socket (0-3)" in note
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {6, 7, 14, 15})
    assert cores.physical_cores(root) == (6, 7), "bound to the second socket, these are the cores"


def test_efficiency_cores_of_a_hybrid_processor_are_left_out(tmp_path, monkeypatch):
    siblings = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", **{cpu: str(cpu) for cpu in range(4, 12)}}
    caches = {cpu: {"cache/index2/level": "2", "cache/index2/type": "Unified",
                    "cache/index2/size": "4096K" if cpu > 3 else "2048K"} for cpu in siblings}  # fmt: skip
    cpus = {cpu: {"topology/thread_siblings_list": text, **caches[cpu]} for cpu, text in siblings.items()}
    root = machine(tmp_path, cpus, {"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-11"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))

    assert cores.physical_cores(root) == (0, 2)
    assert cores.private_cache_bytes(root) == 2 << 20
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8, 12)))
    assert cores.physical_cores(root) == (8, 9, 10, 11)


def test_the_big_cores_of_an_arm_processor_count_though_they_come_last(tmp_path, monkeypatch):
    cpus = {cpu: {"cpu_capacity": "1024" if cpu > 3 else "446", "cache/index0/level": "2",
                  "cache/index0/type": "Unified", "cache/index0/size": "512K" if cpu > 3 else "128K"}
            for cpu in range(6)}  # fmt: skip
    root = machine(tmp_path, cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))

    assert cores.physical_cores(root) == (4, 5)
    assert cores.private_cache_bytes(root) == 512 << 10


def test_unreported_and_untested_caches_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    bare = machine(tmp_path / "bare", {cpu: {"topology/thread_siblings_list": str(cpu)} for cpu in range(4)})
    large = {"cache/index3/level": "3", "cache/index3/type": "Unified", "cache/index3/size": "516096K"}
    many = machine(tmp_path / "many", dict.fromkeys(range(4), large))

    assert cores.physical_cores(many) == (0, 1, 2, 3)
    (missing,), (untested,) = topology_notes(bare), topology_notes(many)
    assert "1 MiB is assumed" in missing
    assert "504 MiB" in untested


@pytest.mark.parametrize("error", [PermissionError, ValueError])
def test_pinning_that_is_not_allowed_is_reported(monkeypatch, error):
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "sched_setaffinity", refuse)

    if error is PermissionError:
        assert cores.pin((0,)) is False
    else:
        with pytest.raises(ValueError):
            cores.pin((0,))


@given(st.sets(st.integers(0, 400)))
def test_a_list_of_processors_is_read_as_it_is_written(numbers):
    ordered = tuple(sorted(numbers))

    assert cores._numbers(cores.ranges(ordered)) == ordered


def test_a_peak_is_not_that_of_the_program_that_started_this_one():
    code = "from dlbricks.generator.machine.cores import peak_bytes; print(peak_bytes())"
    starter = f"import subprocess, sys; kept = bytearray(400_000_000); subprocess.run([sys.executable, '-c', {code!r}])"

    done = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 300_000_000


def test_a_peak_is_forgotten_on_request():
    kept = bytearray(100_000_000)
    kept[:] = b"1" * len(kept)
    before = cores.peak_bytes()
    del kept

    cores.return_memory()

    assert cores.peak_bytes() < before - 50_000_000

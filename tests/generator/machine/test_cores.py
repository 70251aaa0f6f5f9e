"""Physical cores and cache sizes, read from a system's description."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dlbricks.generator.machine import cores


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

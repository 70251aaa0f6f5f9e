"""What a machine with a GPU measured is merged, and asked for on a machine without one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from dlbricks.db import Conditions, Run, Stack, Store, Subject, System, export

GPU_MACHINE = System("Xeon Other", "x86_64", 16, 32, (("L2", 2097152),), 128, ("amx_tile",), ("NVIDIA Example",))
ON_GPU = Stack("torch", "cuda", (("torch", "2.11.0+cu130"),), (("mode", "eager"), ("tf32", "off")))
HALF = Conditions(threads=1, dtype="bfloat16")
OF_GPU = (0.5, 0.25, 0.125, 4.0, 0.0625)
"""Milliseconds of the five layers of the model; all are sums of powers of two, so that totals are exact."""


@pytest.fixture
def gpu(lab, fork, keys_of, graph_of, tmp_path) -> Callable[[], Path]:
    """The database of the machine with the GPU: bricks in two precisions, and the model."""
    path = tmp_path / "gpu.db"
    with Store.open(path) as store:
        system, stack = store.put_system(GPU_MACHINE), store.put_stack(ON_GPU)
        run = Run(str(uuid.uuid4()), "2026-11-21T01:00:00Z", "0", "run", None, system, stack, before={"host": "gpu-1"})
        store.begin_run(run)
        common = {"run": run.id, "system": system, "stack": stack}
        for conditions, factor in ((Conditions(threads=1), 1), (HALF, 0.5)):
            for key, ms in zip(keys_of(fork), OF_GPU, strict=True):
                store.add([(lab.measurement(key, ms * factor, conditions=conditions, **common), ())])
            whole = lab.measurement(
                graph_of(fork).key, 10.0 * factor, subject=Subject.MODEL, conditions=conditions, **common
            )
            store.add([(whole, ())])
    return path


@pytest.fixture
def home(lab, fork, keys_of, monkeypatch) -> Path:
    """The folder of the machine at home, whose own CPU has measured the same bricks."""
    lab.put([(key, 1.0) for key in keys_of(fork)])
    monkeypatch.chdir(lab.folder)
    monkeypatch.setenv("DLBRICKS_DB", "lab.db")
    return lab.folder


def test_the_combinations_of_both_machines_are_listed(cli, gpu, home):
    merged = cli("db", "merge", gpu, "--json")
    asked = cli("estimate", "fork.onnx")

    (added,) = merged.json["results"]
    assert (added["systems"], added["stacks"], added["runs"], added["measurements"]) == (1, 1, 1, 12)
    assert asked.code == 2
    assert "3 stored combinations match" in asked.error
    named = f"--system {GPU_MACHINE.key[:8]} --backend torch --device cuda"
    assert f"{named} --dtype float32 (Xeon Other, NVIDIA Example; torch 2.11.0+cu130; 5 of these bricks)" in asked.error
    assert f"{named} --dtype bfloat16" in asked.error
    assert "--backend onnxruntime --device cpu --dtype float32 (Xeon Example" in asked.error


def test_the_gpu_is_estimated_where_there_is_none(cli, gpu, home):
    cli("db", "merge", gpu)
    options = ("--system", GPU_MACHINE.key[:8], "--device", "cuda", "--dtype", "float32", "--json")

    done = cli("estimate", "fork.onnx", *options)

    (row,) = done.json["results"]
    assert done.code == 0
    assert (row["system"], row["stack"], row["device"]) == (GPU_MACHINE.key, ON_GPU.key, "cuda")
    assert row["sequential_ms"] == sum(OF_GPU)
    assert row["critical_path_ms"] == 0.5 + 4.0 + 0.0625
    assert row["lower_bound_sequential_ms"] == sum(OF_GPU)  # the other system's bricks are no part of it
    assert row["measured_ms"] == 10.0
    assert row["benanza_ratio_sequential"] == sum(OF_GPU) / 10.0
    half = cli("estimate", "fork.onnx", *options[:4], "--dtype", "bfloat16", "--json").json["results"][0]
    assert half["sequential_ms"] == sum(OF_GPU) / 2


def test_measurements_only_of_a_gpu_give_the_estimate_without_the_model(cli, gpu, home):
    with Store.open(gpu) as store:
        assert export(store, home / "back.db", measurements_only=True) == 10  # in both precisions, without the models
    cli("db", "merge", "back.db")

    done = cli("estimate", "fork.onnx", "--device", "cuda", "--dtype", "float32", "--json")

    (row,) = done.json["results"]
    assert row["sequential_ms"] == sum(OF_GPU)  # milliseconds, as they were measured
    assert row["measured_ms"] is row["ratio"] is None
    with Store.open("lab.db") as store:
        assert store.systems()[GPU_MACHINE.key] == GPU_MACHINE  # the GPU's name is part of what was measured
        assert store.stacks()[ON_GPU.key] == ON_GPU
        assert [run.before for run in store.runs() if run.system == GPU_MACHINE.key] == [{}]  # the host's is not

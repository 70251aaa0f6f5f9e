"""What of the shell's environment reaches a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.environment import worker_environment

_PRELOADED = "libBrokenLocale.so.1"
"""Part of the C library; nothing loads it by itself."""

_TUNING = {
    "MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "85", "MALLOC_CONF": "background_thread:true",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "LD_PRELOAD": _PRELOADED, "LD_BIND_NOW": "1",
    "PYTHONMALLOC": "malloc", "PYTHONDEVMODE": "1", "NPY_DISABLE_CPU_FEATURES": "AVX2",
    "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_CPU_AFFINITY": "0", "MKL_NUM_THREADS": "3",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "ATEN_CPU_CAPABILITY": "default", "ORT_UNKNOWN": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHDYNAMO_DISABLE": "1", "TRITON_CACHE_DIR": "/nowhere",
    "CUPY_TF32": "1", "CUDA_INJECTION64_PATH": "/nowhere.so", "CUDA_MODULE_LOADING": "EAGER",
}  # fmt: skip

_WANTED = {
    "LD_LIBRARY_PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "ORT_DISABLE_TELEMETRY": "1", "MODEL_ZOO": "/zoo",
}  # fmt: skip


def test_what_is_recorded_nowhere_does_not_reach_a_worker(monkeypatch):
    """As the kernel was given it: most of these take effect before the first line of Python."""
    for name, value in (_TUNING | _WANTED).items():
        monkeypatch.setenv(name, value)

    with Worker.start("onnxruntime") as worker:
        entries = Path(f"/proc/{worker.pid}/environ").read_bytes().decode().split("\0")
    seen = dict(entry.split("=", 1) for entry in entries if entry)

    assert not seen.keys() & _TUNING.keys()
    assert {name: seen[name] for name in _WANTED} == _WANTED
    assert {"PATH", "TMPDIR"} <= seen.keys()


def test_a_preloaded_library_is_not_in_a_worker(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", _PRELOADED)
    shown = "from pathlib import Path; print(Path('/proc/self/maps').read_text())"
    plain = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout
    if _PRELOADED not in plain:
        pytest.skip(f"the C library here has no {_PRELOADED}")

    with Worker.start("onnxruntime") as worker:
        mapped = Path(f"/proc/{worker.pid}/maps").read_text()

    assert "libc.so" in mapped
    assert _PRELOADED not in mapped


def test_the_temporary_folder_is_the_workers_own(tmp_path):
    found = worker_environment(tmp_path, given={"TMPDIR": "/tmp", "HOME": "/home/ann", "LD_PRELOAD": "x.so"})

    ours = {"ORT_DISABLE_TELEMETRY": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
    assert found == {"TMPDIR": str(tmp_path), "HOME": "/home/ann", **ours}


def test_no_array_of_a_worker_asks_for_huge_pages(tmp_path):
    """Not even where the user wants them: weights would lie on them where an array was before."""
    found = worker_environment(tmp_path, given={"NUMPY_MADVISE_HUGEPAGE": "1"})

    assert found["NUMPY_MADVISE_HUGEPAGE"] == "0"


def test_a_runtime_writes_nothing_into_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    with Worker.start("onnxruntime"):
        pass
    assert not list(tmp_path.iterdir())


def test_telemetry_is_the_users_choice(tmp_path):
    assert worker_environment(tmp_path, given={"ORT_DISABLE_TELEMETRY": "0"})["ORT_DISABLE_TELEMETRY"] == "0"

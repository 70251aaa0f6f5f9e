"""What of the shell's environment reaches a worker."""

from __future__ import annotations

from pathlib import Path

from dlbricks.generator.worker.client import worker_environment
from working import start

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


def test_what_is_recorded_nowhere_does_not_reach_a_worker_and_it_writes_nothing_home(tmp_path, monkeypatch):
    """As the kernel was given it: most of these take effect before the first line of Python."""
    for name, value in (_TUNING | _WANTED | {"HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    with start("onnxruntime", {}) as worker:
        entries = Path(f"/proc/{worker.pid}/environ").read_bytes().decode().split("\0")
        mapped = Path(f"/proc/{worker.pid}/maps").read_text()
    seen = dict(entry.split("=", 1) for entry in entries if entry)

    assert not seen.keys() & _TUNING.keys()
    assert {name: seen[name] for name in _WANTED} == _WANTED
    assert {"PATH", "TMPDIR"} <= seen.keys()
    assert "libc.so" in mapped
    assert _PRELOADED not in mapped
    assert not list(tmp_path.iterdir())


def test_the_temporary_folder_is_the_workers_own_and_no_array_asks_for_huge_pages(tmp_path):
    """Not even where the user wants them: weights would lie on them where an array was before."""
    given = {"TMPDIR": "/tmp", "HOME": "/home/ann", "LD_PRELOAD": "x.so", "NUMPY_MADVISE_HUGEPAGE": "1"}

    found = worker_environment(tmp_path, environment=given)

    ours = {"ORT_DISABLE_TELEMETRY": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
    assert found == {"TMPDIR": str(tmp_path), "HOME": "/home/ann", **ours}
    users = worker_environment(tmp_path, environment={"ORT_DISABLE_TELEMETRY": "0"})
    assert users["ORT_DISABLE_TELEMETRY"] == "0"  # telemetry is the user's choice

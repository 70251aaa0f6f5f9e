"""What is reported of a GPU that cannot be used, before a runtime is loaded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from dlbricks.db import Store
from dlbricks.errors import BackendUnavailable
from dlbricks.generator.backends import registry
from dlbricks.generator.backends.base import Availability
from dlbricks.generator.backends.torch.backend import TorchBackend, built_without_cuda
from dlbricks.generator.machine.nvml import has_driver
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run

BUILDS = {
    "of the CPU": ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
    "of CUDA": ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False),
    "of CUDA, without a type": ("cuda = '12.8'\n", False),
    "that does not say": ("__version__ = '2.13.0'\n# cuda = None\n", False),
}
"""A build and what PyTorch writes of it into ``torch/version.py``, and whether it has no CUDA."""

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="drivers are looked for on Linux alone")


@LINUX
def test_a_driver_is_known_by_its_kernel_module_or_its_library(tmp_path):
    sign = tmp_path / "version"

    assert not has_driver([sign], "libnothing-of-this-name.so.1")
    assert has_driver([sign], "libm.so.6")
    sign.touch()
    assert has_driver([sign], "libnothing-of-this-name.so.1")


@pytest.mark.parametrize("build", BUILDS)
def test_a_build_of_pytorch_reports_what_it_was_built_for(tmp_path, build):
    text, without = BUILDS[build]
    path = tmp_path / "version.py"
    path.write_text(f"from typing import Optional\n\n{text}")

    assert built_without_cuda(path) is without


def test_of_a_build_that_cannot_be_read_nothing_is_known(tmp_path):
    assert not built_without_cuda(tmp_path / "version.py")


def test_the_installed_build_is_what_it_says_once_it_is_loaded():
    torch = pytest.importorskip("torch")

    path = Path(importlib.util.find_spec("torch").origin).with_name("version.py")

    assert built_without_cuda(path) is (torch.version.cuda is None)


def test_nothing_is_loaded_to_find_out():
    code = (
        "import sys\nfrom dlbricks.generator.backends import registry\n"
        "print(registry.backends()['torch'].why_not('cuda'))\n"
        "assert not {'torch', 'onnxruntime', 'openvino'} & set(sys.modules), sorted(sys.modules)"
    )

    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)


def test_a_backend_that_is_not_installed_lacks_that_on_every_device():
    absent = Availability(ok=False, reason="not installed")

    assert absent.why_not("cpu") == absent.why_not("cuda") == "not installed"


def test_a_device_of_which_nothing_is_known_is_left_to_the_runtime():
    known = Availability(ok=True, missing={"cuda": "no driver"})

    assert known.why_not("cpu") == ""
    assert known.why_not("cuda") == "no driver"


@pytest.fixture
def lack() -> str:
    """What PyTorch lacks to run on a GPU here."""
    pytest.importorskip("torch")
    lack = TorchBackend().probe().why_not("cuda")
    if not lack:
        pytest.skip("there is CUDA, and a driver")
    return lack


def test_the_device_is_named_with_what_it_lacks_and_with_one_that_runs(lack):
    backend = TorchBackend()

    registry.require_available(backend, "torch", "cpu")
    with pytest.raises(BackendUnavailable) as refused:
        registry.require_available(backend, "torch", "cuda")

    assert str(refused.value) == f"backend torch cannot run on device 'cuda' here: {lack}; use --device cpu"


@pytest.mark.usefixtures("lack")
@pytest.mark.parametrize("cache", ["model", "hot"])
def test_nothing_is_begun_on_a_device_that_is_not_there(small_suite, small_models, store, cache):
    for start in (
        lambda: run(small_suite, store=store, backend="torch", device="cuda", cache=cache),
        lambda: run(small_suite, store=store, backend="torch", device="cuda", cache=cache, dry_run=True),
        lambda: measure(small_models, store=store, backend="torch", device="cuda", cache=cache),
    ):
        with pytest.raises(BackendUnavailable, match="cannot run on device 'cuda' here"):
            start()

    assert not any(store.info()["counts"].values())


@pytest.mark.usefixtures("here")
def test_the_list_has_a_row_for_each_device(cli, lack):
    (row,) = [row for row in cli("backends", "list", "--json").json["results"] if row["name"] == "torch"]
    table = [line.split("  ") for line in cli("backends", "list").out.splitlines() if line.startswith("torch ")]
    refused = cli("measure", "squeezenet", "--backend", "torch", "--device", "cuda")

    assert row["available"] is True
    assert row["reason"] is None
    assert row["devices"] == ["cpu", "cuda"]
    assert row["reasons"] == {"cpu": None, "cuda": lack}
    on_gpu = {name: value for name, value in row["options"].items() if name != "onednn"}
    assert row["options_by_device"] == {"cpu": row["options"], "cuda": on_gpu | {"tf32": "off", "benchmark": "off"}}
    assert "options of torch on cuda, other values: tf32=off benchmark=off" in cli("backends", "list").out.splitlines()
    assert [[cell.strip() for cell in line if cell.strip()] for line in table] == [
        ["torch", "cpu", "yes", "-", f"torch {version('torch')}"],
        ["torch", "cuda", "no", lack, f"torch {version('torch')}"],
    ]
    assert refused.code == 1
    assert refused.out == ""
    assert lack in refused.error
    with Store.open("dlbricks.db") as store:
        assert not any(store.info()["counts"].values())

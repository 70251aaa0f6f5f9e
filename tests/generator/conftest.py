"""Tiny models in skeleton form and as files, a suite of them, and a backend that can be made to fail."""

from __future__ import annotations

import fcntl
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.store import Store
from dlbricks.errors import BackendUnavailable
from dlbricks.generator.backends import environments, registry
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.models import ModelSource, find_models
from dlbricks.models.skeleton import mark_weight
from onnx import numpy_helper

SkeletonOf = Callable[..., onnx.ModelProto]
ModelFile = Callable[..., Path]

SMALL = (
    "(float[1,8,12,12] x) => (float[1,40] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, w0, w1) b = Relu(a) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)"
    " d = Flatten(c) e = Gemm(d, w2, w3) f = Tanh(e) g = Softmax(f) h = Sqrt(g) i = Exp(h) y = Sigmoid(i)}"
)
SMALL_WEIGHTS = {"w0": (8, 8, 3, 3), "w1": (8,), "w2": (288, 40), "w3": (40,)}
"""Ten layers, ten bricks at G = 1."""

_FAULTY = Path(__file__).with_name("faulty_backend.py")


@pytest.fixture(scope="session")
def skeleton_of() -> SkeletonOf:
    """Parse ``(inputs) => (outputs) {nodes}``; graph inputs whose names begin with w are weights."""

    def parse(graph: str, *, domains: str = "") -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21{domains}]> brick {graph}')
        for value in model.graph.input:
            if value.name.startswith("w"):
                mark_weight(value)
        return model

    return parse


@pytest.fixture(scope="session")
def model_file() -> ModelFile:
    """Write a model file with seeded weights: graph as in ``skeleton_of``, weights by name and shape."""

    def write(path: Path, graph: str, weights: dict[str, tuple[int, ...]]) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {graph}')
        generator = np.random.default_rng(0)
        for name, shape in weights.items():
            values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        onnx.save(model, path)
        return path

    return write


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory, model_file: ModelFile) -> list[ModelSource]:
    """One small model file."""
    return find_models([model_file(tmp_path_factory.mktemp("models") / "small.onnx", SMALL, SMALL_WEIGHTS)])


@pytest.fixture(scope="session")
def small_suite(tmp_path_factory: pytest.TempPathFactory, small_models: list[ModelSource]) -> Suite:
    """The suite of the small model: ten bricks."""
    suite = generate(small_models, granularity=1, out=tmp_path_factory.mktemp("suites") / "small").suite
    assert suite is not None
    return suite


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with Store.open(tmp_path / "test.db") as opened:
        yield opened


@dataclass(frozen=True)
class OwnRuntime:
    """The environment of MXNet that all tests share; ``untouched``: its installation left that of the tests alone."""

    cache: Path
    folder: Path
    untouched: bool


InstallRuntime = Callable[[Path], OwnRuntime]


@pytest.fixture(scope="session")
def install_runtime() -> InstallRuntime:
    """Installs MXNet for real, into a cache folder. Skips where the machine has no Python that its packages are for."""

    def install(cache: Path) -> OwnRuntime:
        try:
            environments.find_python(MxnetBackend.environment)
        except BackendUnavailable as error:
            pytest.skip(str(error))
        site = Path(sysconfig.get_paths()["purelib"])
        verdict = cache / "untouched"  # what the installation that made it did, for runs that find it there
        cache.mkdir(parents=True, exist_ok=True)
        with pytest.MonkeyPatch.context() as patch, (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = _listing(site)
            again = not verdict.exists()
            patch.setenv("DLBRICKS_CACHE", str(cache))
            patch.setenv("PIP_CONSTRAINT", "no-such-file")  # what binds the environment of the tests must not reach it
            done = environments.install_backend("mxnet", again=again)
            if done.fresh:
                verdict.write_text("yes" if _listing(site) == before else "no")
        return OwnRuntime(cache, done.folder, untouched=verdict.read_text() == "yes")

    return install


@pytest.fixture(scope="session")
def own_runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, install_runtime: InstallRuntime
) -> OwnRuntime:
    """MXNet, installed once, by whichever process of the tests wants it first; the others wait for it.

    It stays in the folder of the checkout that ``make clean`` removes; all sweeps install it anew.
    """
    if request.config.getoption("sweep") == "sample":
        return install_runtime(request.config.rootpath / ".cache" / "runtimes")
    base = tmp_path_factory.getbasetemp()
    return install_runtime((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "runtimes")


def _listing(site: Path) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_mtime_ns) for path in site.iterdir() if path.name != "__pycache__")


@pytest.fixture
def mxnet(own_runtime: OwnRuntime, monkeypatch: pytest.MonkeyPatch) -> OwnRuntime:
    """MXNet as a user has it who installed it."""
    monkeypatch.setenv("DLBRICKS_CACHE", str(own_runtime.cache))
    return own_runtime


@pytest.fixture
def install_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Installs a backend as any plug-in would be: its name, the name of its class, and the code of its module."""

    def install(name: str, backend: str, code: str) -> None:
        folder = tmp_path / "plugin"
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{name}_backend.py").write_text(code)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[dlbricks.backends]\n{name} = {name}_backend:{backend}\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(":"))
        registry._points.cache_clear()
        monkeypatch.setattr(registry, "_points", registry._points.__wrapped__)

    return install


@pytest.fixture
def faulty(
    install_backend: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str]], None]:
    """Installs the backend ``faulty`` and says how it fails.

    It is ONNX Runtime, but for networks that hold certain operators, packs that hold them included: ``{"Sqrt":
    "run:crash"}``; faults are crash, exit, slow, hang, memory and unsupported, in ``prepare``, in ``optimise`` (where
    a pack is made) or in ``run``, and with ``run:crash@3`` after three runs that went well; ``run:later`` crashes at
    the next run of another network, as memory that was overwritten does, and ``close:crash`` when it is released.
    """
    install_backend("faulty", "FaultyBackend", _FAULTY.read_text())
    return lambda faults: monkeypatch.setenv("DLBRICKS_TEST_FAULTS", json.dumps(faults))

"""Tiny models in skeleton form and as files, a suite of them, and a backend that can be made to fail."""

from __future__ import annotations

import fcntl
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from dlbricks.generator.worker.client import Worker, Workers, start_worker
from dlbricks.generator.worker.messages import Place
from dlbricks.models import ModelSource, find_models
from dlbricks.models.skeleton import mark_weight
from onnx import numpy_helper
from working import place

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
    """Write a model file: graph as in ``skeleton_of``, weights by name: an array, or the shape of a seeded one."""

    def write(path: Path, graph: str, weights: dict[str, Any], *, opset: int = 17) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> model {graph}')
        generator = np.random.default_rng(0)
        for name, one in weights.items():
            shaped = isinstance(one, np.ndarray)
            values = one if shaped else generator.standard_normal(one, dtype=np.float32) * np.float32(0.1)
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
def source(tmp_path: Path, model_file: ModelFile) -> Callable[..., ModelSource]:
    """Write a model as ``model_file`` does and find it again; other options are those of ``find_models``."""

    def write(
        graph: str, weights: dict[str, Any] | None = None, *, opset: int = 17, name: str = "model", **options: Any
    ) -> ModelSource:
        (found,) = find_models([model_file(tmp_path / f"{name}.onnx", graph, weights or {}, opset=opset)], **options)
        return found

    return write


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers[Place]]:
    """Workers by place, for all tests that leave them as they found them: each start takes half a second."""
    with Workers(start_worker) as made:
        yield made


@pytest.fixture(scope="session")
def worker_of(workers: Workers[Place]) -> Callable[..., Worker]:
    """The worker of a backend with options, as in ``working.place``. Skips where the backend is not installed."""

    def at(backend: str = "onnxruntime", *options: Any, **more: Any) -> Worker:
        available = registry.get(backend).probe()
        if not available.ok:
            pytest.skip(available.reason)
        return workers.at(place(backend, *options, **more))

    return at


@pytest.fixture
def worker(worker_of: Callable[..., Worker]) -> Worker:
    """That of ONNX Runtime for networks one by one."""
    return worker_of()


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
        monkeypatch.setattr(registry, "_points", getattr(registry._points, "__wrapped__", registry._points))

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

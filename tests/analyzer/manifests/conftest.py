"""A suite that was really run, and the manifest of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from dlbricks.analyzer.manifests.manifest import Manifest, manifest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models

FEW = {"visits": 10, "processes": 1, "sessions": 1}


@dataclass(frozen=True)
class Measured:
    """What was measured of the model ``branches``, itself included."""

    suite: Suite
    database: Path
    run: str
    manifest: Manifest


@pytest.fixture(scope="session")
def stated(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Measured:
    folder = tmp_path_factory.mktemp("stated")
    models = find_models([write_branches(folder / "secret-name.onnx")])
    made = generate(models, granularity=1, out=folder / "suite").suite
    assert made is not None
    with Store.open(folder / "stated.db") as store:
        done = run(made, store=store, models=models, node="annas-laptop", campaign="hush", **FEW)
        assert done.run is not None
        found = manifest(made, store=store)
    return Measured(made, folder / "stated.db", done.run, found)

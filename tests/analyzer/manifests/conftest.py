"""A suite that was really run, and the manifest of that."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from dlbricks.analyzer.manifests.manifest import DESCRIPTION, MEASUREMENTS, Manifest, manifest, unpack
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Block, Measurement, Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.software import LOCK
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models
from lab import changed

FEW = {"visits": 10, "processes": 1, "sessions": 1}

Measurements = Sequence[tuple[Measurement, Sequence[Block]]]


@dataclass(frozen=True)
class Measured:
    """What was measured of the model ``branches``, itself included."""

    suite: Suite
    database: Path
    run: str
    file: Path
    manifest: Manifest


@pytest.fixture(scope="session")
def stated(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Measured:
    folder = tmp_path_factory.mktemp("stated")
    models = find_models([write_branches(folder / "secret-name.onnx")])
    suite = generate(models, granularity=1, out=folder / "suite").suite
    assert suite is not None
    with Store.open(folder / "stated.db") as store:
        done = run(suite, store=store, models=models, node="annas-laptop", campaign="hush", **FEW)
        assert done.run is not None
        described = manifest(suite, folder / "results.zip", store=store)
    return Measured(suite, folder / "stated.db", done.run, folder / "results.zip", described)


def doctored(
    file: Path,
    place: Path,
    *,
    measurements: Callable[[Measurements], Measurements] | None = None,
    settings: Mapping[str, Any] | None = None,
    lock: bytes | None = None,
) -> Path:
    """Write a manifest with other measurements, settings or another lock file, and with the digests of these."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        described = unpack(file, folder)
        if measurements is not None:
            (folder / MEASUREMENTS).rename(folder / "before.db")
            with Store.open(folder / "before.db", read_only=True) as source, Store.open(folder / "after.db") as target:
                stored = source.measurements(variant=None, latest=False)
                blocks = source.blocks_of([one.id for one in stored])
                for system in source.systems().values():
                    target.put_system(system)
                for stack in source.stacks().values():
                    target.put_stack(stack)
                (ran,) = source.runs()
                target.begin_run(ran)
                target.add(measurements([(one, blocks[one.id]) for one in stored]))
            (folder / "after.db").rename(folder / MEASUREMENTS)
        if lock is not None:
            (folder / LOCK).write_bytes(lock)
        said = dataclasses.asdict(described)
        said["measurements"] = hashlib.sha256((folder / MEASUREMENTS).read_bytes()).hexdigest()
        said["lock"] = None if lock is None else hashlib.sha256(lock).hexdigest()
        said["provenance"]["settings"] |= settings or {}
        (folder / DESCRIPTION).write_text(json.dumps(said))
        with zipfile.ZipFile(place, "w") as archive:
            for path in [folder / DESCRIPTION, folder / MEASUREMENTS, *folder.glob(LOCK), *folder.glob("suite/**/*")]:
                archive.write(path, path.relative_to(folder))
    return place


def scaled(factor: float) -> Callable[[Measurements], Measurements]:
    """Change measurements as if everything had taken so many times as long."""

    def block_of(block: Block) -> Block:
        samples = tuple((round(ns * factor), loops) for ns, loops in block.samples)
        return dataclasses.replace(block, samples=samples)

    def change(every: Measurements) -> Measurements:
        return [
            (
                changed(one, mean_ns=one.latency_ns * factor, undisturbed_ns=(one.undisturbed_ns or 0.0) * factor),
                [block_of(block) for block in blocks],
            )
            for one, blocks in every
        ]

    return change

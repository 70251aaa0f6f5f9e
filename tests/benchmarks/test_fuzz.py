"""A short run of the fuzzer, and that it finds what is wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from fuzz import Case, judge, make
from fuzzing.damage import DATABASES, MODELS
from fuzzing.process import Ended, Limits
from fuzzing.subjects import CANARY, Subjects, prepare

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return prepare(tmp_path_factory.mktemp("fuzz") / "subjects")


@pytest.mark.slow
def test_a_sample_of_cases_ends_well(tmp_path: Path, thorough: bool) -> None:
    """In a process of its own: one that forks must have no threads."""
    count = 600 if thorough else 60
    call = [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "--cases", str(count), "--seed", "short", "--fast"]
    done = subprocess.run(
        call, capture_output=True, text=True, cwd=tmp_path, check=False, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert f"{count} cases in " in done.stdout, done.stderr
    assert ": 0 findings of 0 causes" in done.stdout, done.stdout


def test_a_case_is_made_again_from_its_name(subjects: Subjects, tmp_path: Path) -> None:
    for name in ("model/3", "suite/4", "database/5"):
        one, other = (make(name, "s", subjects, tmp_path / place / name.replace("/", "-")) for place in "ab")
        assert one == other
    first, second = ((tmp_path / place / "model-3" / "case" / "model.onnx").read_bytes() for place in "ab")
    assert first == second


@pytest.mark.parametrize("way", sorted(MODELS))
def test_models_are_damaged(way: str, subjects: Subjects, tmp_path: Path) -> None:
    changed = 0
    for number in range(20):
        rng = random.Random(number)
        path = tmp_path / "model.onnx"
        original = rng.choice(subjects.models).read_bytes()
        path.write_bytes(original)
        MODELS[way](path, rng)
        changed += path.read_bytes() != original
    assert changed > 10


def test_databases_are_damaged(subjects: Subjects, tmp_path: Path) -> None:
    original = subjects.database.read_bytes()
    for way, damage in DATABASES.items():
        changed = 0
        for seed in range(5):
            path = tmp_path / f"{way}{seed}.db"
            path.write_bytes(original)
            damage(path, random.Random(seed))
            changed += path.read_bytes() != original
        assert changed, way


def test_subjects_are_intact(subjects: Subjects) -> None:
    for path in subjects.models:
        onnx.checker.check_model(onnx.load(path))
    assert len(list(subjects.suite.rglob("*.onnx"))) > 2
    assert subjects.database.stat().st_size > 10_000


def test_what_ends_badly_is_found(tmp_path: Path) -> None:
    for name in ("case", "outside", "home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "secret.bin").write_bytes(CANARY * 400)
    case, limits = Case("model/0", "model", "bytes", ("generate",)), Limits()

    def found(**change: Any) -> set[str]:
        well = Ended(code=1, signal=None, late=False, out="", err="", touched=(), resident_bytes=1, seconds=1.0)
        return {one.what for one in judge(case, replace(well, **change), tmp_path, limits)}

    assert found() == set()
    assert found(err="Traceback (most recent call last):\nKeyError") == {"traceback"}
    assert found(out="model could not be decomposed; please report this with the model") == {"unforeseen"}
    assert found(code=70) == {"exit code"}
    assert found(code=None, signal=11) == {"signal"}
    assert found(code=None, signal=9, late=True) == {"late"}
    assert found(resident_bytes=limits.resident_bytes + 1) == {"memory"}
    assert found(touched=("open /etc/passwd",)) == {"touched"}
    assert found(err=CANARY.decode()) == {"leak"}
    (tmp_path / "tmp" / "left").mkdir()
    assert found() == {"left behind"}
    (tmp_path / "home" / ".cache").mkdir()
    (tmp_path / "outside" / "more").touch()
    assert found() == {"left behind", "touched"}

"""The wheel, built from the source archive, contains the package alone and works outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel offline from the source archive of a copy, so that the repository stays clean."""
    source, out = tmp_path_factory.mktemp("build") / "source", tmp_path_factory.mktemp("wheel")
    skipped = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "demo", "__pycache__", "*.db*")
    shutil.copytree(ROOT, source, ignore=skipped)
    pack = f"from setuptools import build_meta; build_meta.build_sdist({str(source / 'dist')!r})"
    subprocess.run([sys.executable, "-c", pack], cwd=source, check=True, capture_output=True)
    (archive,) = (source / "dist").iterdir()
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(archive)], check=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel, whose dependencies are those of this one: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    python = str(folder / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    # A plain path, whose own .pth files are not read: the editable install of this environment stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def call(clean: Path, folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(clean / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dlbricks"}
    inside = {name.split("/")[1] for name in names if name.startswith("dlbricks/")}
    assert not inside & {"tests", "benchmarks", "docs", "demo", "Makefile", "pyproject.toml"}
    assert "dlbricks/py.typed" in names
    assert "dlbricks/generator/backends/mxnet/pins.txt" in names
    templates = (ROOT / "analyzer/report/page/templates").iterdir()
    assert {f"dlbricks/{path.relative_to(ROOT)}" for path in templates} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    in_repository = {
        f"dlbricks/{path.relative_to(ROOT)}"
        for folder in ("models", "bricks", "db", "generator", "constructor", "analyzer")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert in_repository <= set(names)


def test_the_installed_package_is_the_one_that_runs(clean: Path, tmp_path: Path) -> None:
    where = call(clean, tmp_path, "python", "-c", "import dlbricks; print(dlbricks.__file__)")

    assert Path(where.strip()).is_relative_to(clean.parent)
    assert "Usage: dlbricks" in call(clean, tmp_path, "dlbricks", "--help")
    assert "Usage: dlbricks" in call(clean, tmp_path, "python", "-m", "dlbricks", "--help")


@pytest.mark.slow
def test_the_whole_way_works_outside_the_repository(
    clean: Path, tmp_path: Path, write_branches: Callable[[Path], Path]
) -> None:
    write_branches(tmp_path / "branches.onnx")

    made = json.loads(
        call(clean, tmp_path, "dlbricks", "generate", "squeezenet", "branches.onnx", "-o", "all", "--json")
    )
    call(clean, tmp_path, "dlbricks", "generate", "branches.onnx", "-o", "suite")
    call(clean, tmp_path, "dlbricks", "run", "suite", "--visits", "10", "--processes", "1")
    call(clean, tmp_path, "dlbricks", "db", "upgrade")
    estimate = json.loads(call(clean, tmp_path, "dlbricks", "estimate", "branches.onnx", "--plot", "p.svg", "--json"))

    call(clean, tmp_path, "dlbricks", "report", "branches.onnx", "--no-measure", "--graph", "fused", "-o", "page.html")

    assert made["results"][0]["layers"] == 66
    assert "One inference is estimated to take" in (tmp_path / "page.html").read_text()
    assert estimate["results"][0]["sequential_ms"] > 0

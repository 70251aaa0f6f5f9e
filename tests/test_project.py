"""The project frame: what is packaged, what is public, what the version is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import dlbricks
import pytest
from dlbricks import errors

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


SKIPPED = {"tests", "benchmarks", "docs", "build", "dist", "demo"}
FOLDERS = sorted(
    {
        path.parent.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if not any(part.startswith(".") or part in SKIPPED for part in path.relative_to(ROOT).parts)
    }
)


def test_setuptools_finds_every_folder_with_modules() -> None:
    assert all((ROOT / folder / "__init__.py").exists() for folder in FOLDERS)
    assert FOLDERS


def test_every_data_file_is_packaged() -> None:
    data = {path.relative_to(ROOT) for folder in FOLDERS[1:] for path in (ROOT / folder).iterdir() if path.is_file()}

    found = {path for path in data if path.suffix != ".py"}
    assert found == {
        Path("analyzer/comparison/reproduce.py.txt"),
        Path("constructor/prediction.json"),
        Path("constructor/prior.json.xz"),
        Path("constructor/uncertainty/calibration.json"),
        Path("constructor/uncertainty/scatter.json"),
        Path("generator/backends/mxnet/pins.txt"),
    }
    assert PROJECT["tool"]["setuptools"]["package-data"] == {
        "dlbricks": ["py.typed"],
        "dlbricks.analyzer.comparison": ["reproduce.py.txt"],
        "dlbricks.analyzer.report.page": ["templates/*"],
        "dlbricks.constructor": ["prediction.json", "prior.json.xz"],
        "dlbricks.constructor.uncertainty": ["calibration.json", "scatter.json"],
        "dlbricks.generator.backends.mxnet": ["pins.txt"],
    }


def test_every_extra_is_used_somewhere() -> None:
    """An extra that does nothing is a promise that is not kept."""
    extras = set(PROJECT["project"]["optional-dependencies"])

    text = "".join(
        path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.rglob("db/*.py"), *ROOT.rglob("models/**/*.py")]
    )

    assert extras == {"zoo", "torch", "openvino", "cuda", "parquet", "postgres", "fleet", "dev"}
    ways = ("dlbricks[{}]", "-e '.[{}]'", "`{}` extra", "`{}`,", "`{}`.")
    assert all(any(way.format(extra) in text for way in ways) for extra in extras - {"dev"})


def test_versions_are_pinned_for_everything_that_is_required() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    required = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        required += extra

    names = {re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in required}  # type: ignore[index]

    assert names <= set(pins)


def test_the_version_has_one_source() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", dlbricks.__version__)
    assert PROJECT["project"]["dynamic"] == ["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{dlbricks.__version__}]" in changelog


@pytest.mark.parametrize("name", dlbricks.__all__)
def test_every_public_name_is_there_documented_and_listed(name: str) -> None:
    value = getattr(dlbricks, name)

    assert name in dir(dlbricks)
    if name != "__version__":
        assert inspect.getdoc(value)
        assert value.__module__.startswith("dlbricks.")


def test_public_names_are_those_that_type_checkers_see() -> None:
    source = (ROOT / "__init__.py").read_text()
    block = source[source.index("if TYPE_CHECKING:") : source.index("__all__")]

    seen = {name.strip() for names in re.findall(r"import (.*)", block) for name in names.split(",")}

    assert seen | {"__version__"} == set(dlbricks.__all__)
    assert dlbricks.__all__ == sorted(dlbricks.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dlbricks.nonsense


def test_every_module_imports_and_says_what_it_is_for() -> None:
    skipped = ("__main__", ".migrations.")
    for module in pkgutil.walk_packages([str(ROOT)], "dlbricks."):
        if module.name.startswith(("dlbricks.setup", "dlbricks.tests", "dlbricks.benchmarks", "dlbricks.docs")):
            continue
        if any(part in module.name for part in skipped):
            continue
        assert inspect.getdoc(importlib.import_module(module.name)), module.name


def test_every_name_in_all_exists() -> None:
    for package in FOLDERS:
        name = ".".join(("dlbricks", *package.parts))
        module = importlib.import_module(name)
        missing = [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)]
        assert not missing, name


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")

    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and name != "DlbricksError"}

    assert set(drawn) == kinds
    assert all(issubclass(getattr(errors, name), errors.DlbricksError) for name in kinds)


def test_an_error_is_one_line_with_its_remedy() -> None:
    error = errors.ModelNotFound("no model\n'x'", remedy="look again")

    assert str(error) == "no model 'x'; look again"
    assert error.exit_code == 1
    assert errors.AmbiguousQuery("which?").exit_code == 2

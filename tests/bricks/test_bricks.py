"""The package's public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dlbricks.bricks
import pytest


@pytest.mark.parametrize("name", dlbricks.bricks.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(dlbricks.bricks, name).__name__ == name
    assert name in dir(dlbricks.bricks)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = dlbricks.bricks.nothing


def test_the_package_alone_imports_nothing_heavy(tmp_path: Path) -> None:
    code = "import dlbricks.bricks, sys; print(*sorted({'onnx', 'networkx', 'numpy', 'pandas'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

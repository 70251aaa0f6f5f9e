"""The package as it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_package_alone_imports_nothing_heavy(tmp_path: Path) -> None:
    code = "import dlbricks.bricks, sys; print(*sorted({'onnx', 'networkx', 'numpy', 'pandas'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

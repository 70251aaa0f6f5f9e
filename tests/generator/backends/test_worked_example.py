"""The backend of docs/contributing/backend.md is found, measures, and computes the same as ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dlbricks import check_agreement, run
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.generator.backends import registry

PAGE = Path(__file__).resolve().parents[3] / "docs" / "contributing" / "backend.md"


@pytest.fixture
def reference(install_backend: Callable[[str, str, str], None]) -> None:
    """Installs the page's backend."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    install_backend("reference", "ReferenceBackend", code)


@pytest.mark.usefixtures("reference")
def test_it_is_found_measures_and_agrees(small_suite: Suite, store: Store):
    assert registry.backends()["reference"].ok

    report = run(small_suite, store=store, backend="reference", cache="hot", visits=4)
    agreement = check_agreement(small_suite, backend="reference", against="onnxruntime")

    assert report.measured == len(small_suite.keys)
    assert agreement.complete

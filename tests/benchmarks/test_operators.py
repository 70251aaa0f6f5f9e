"""The table of operators is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_code_and_the_run_say() -> None:
    pytest.importorskip("torch")  # what PyTorch has is asked of its operators' modules
    import operators

    for page in operators.PAGES:
        text = (TOP / page).read_text()
        assert operators.rendered(text, TOP) == text, f"{page}: run python benchmarks/operators.py"

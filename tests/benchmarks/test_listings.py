"""What pages list of the code is that of the code."""

from __future__ import annotations

from pathlib import Path

import blocks
import listings

TOP = Path(__file__).resolve().parents[2]


def test_every_list_is_that_of_the_code():
    for page in listings.PAGES:
        text = (TOP / page).read_text()
        assert listings.rendered(text) == text, f"{page}: run python benchmarks/listings.py"
        assert blocks.named(text)


def test_a_list_that_was_changed_by_hand_is_written_anew():
    text = (TOP / "docs/reference/cli.md").read_text()
    changed = text.replace("- `--jobs N`: ", "- `--jobs MANY`: ")

    assert changed != text
    assert listings.rendered(changed) == text

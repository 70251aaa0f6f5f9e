"""The lists in the reference pages are generated from the code."""

from __future__ import annotations

from pathlib import Path

import blocks
import listings
import pytest

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


@pytest.mark.parametrize("name", dict(listings.leaves()))
def test_each_option_is_explained_once_for_its_command_or_for_all(name):
    options = listings.documented(dict(listings.leaves())[name])
    block = f"options-{name.removeprefix('dlbricks ').replace(' ', '-')}"

    text = listings.rendered(f"<!-- {block} --><!-- /{block} -->")

    for names, meaning in options.items():
        own = f"- `{names}`: {meaning}" in text.splitlines()
        assert own != any(listings.shared_options(heading).get(names) == meaning for heading in listings.SHARED)

"""What pages list of the code is that of the code."""

from __future__ import annotations

from pathlib import Path

import listings
import pytest
from dlbricks.cli import commands

TOP = Path(__file__).resolve().parents[2]


def test_every_list_is_that_of_the_code():
    for page in listings.PAGES:
        text = (TOP / page).read_text()
        assert listings.rendered(text) == text, f"{page}: run python benchmarks/listings.py"
        assert listings.blocks.named(text)


def test_an_option_that_was_changed_is_seen(monkeypatch):
    text = (TOP / "docs/cli.md").read_text()
    (overlap,) = (one for one in commands.commands["generate"].params if one.name == "overlap")
    monkeypatch.setattr(overlap, "opts", ["--sliding"])

    assert "- `--sliding`: " in listings.rendered(text)
    assert listings.rendered(text) != text


def test_a_list_that_was_changed_by_hand_is_written_anew():
    text = (TOP / "docs/cli.md").read_text()
    changed = text.replace("- `--jobs N`: ", "- `--jobs MANY`: ")

    assert changed != text
    assert listings.rendered(changed) == text


def test_a_list_of_nothing_is_refused():
    for name in ("nothing", "options-nothing", "signature-nothing", "fields-nothing"):
        with pytest.raises(KeyError, match="nothing"):
            listings.rendered(f"<!-- {name} --><!-- /{name} -->")


def test_a_signature_is_what_python_can_call():
    short, long = (listings.rendered(f"<!-- signature-{name} --><!-- /signature-{name} -->") for name in
                   ("library_plans", "run"))  # fmt: skip

    assert "dlbricks.library_plans(" in short
    assert "    *,\n    store: Store,\n    models: Sequence[ModelSource] = (),\n" in long
    assert "    **fields: Unpack[MeasurementFields],  # backend, device, options, " in long
    assert long.endswith(") -> RunReport\n```\n<!-- /signature-run -->")


def test_a_value_is_made_as_its_signature_says():
    made = listings.rendered("<!-- signature-MeasurementSettings --><!-- /signature-MeasurementSettings -->")

    assert "dlbricks.MeasurementSettings(\n    backend: str = 'onnxruntime',\n" in made
    assert "    options: Mapping[str, str] = {},\n" in made
    assert made.endswith("\n)\n```\n<!-- /signature-MeasurementSettings -->")


def test_a_page_is_written_or_checked(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before <!-- a -->1<!-- /a --> after")
    monkeypatch.setattr(listings.blocks, "TOP", tmp_path)

    def write(*arguments):
        monkeypatch.setattr("sys.argv", ["script", *arguments])
        rendered = lambda text: listings.blocks.rendered(text, {"a": "2"}.__getitem__)  # noqa: E731
        listings.blocks.write([Path("page.md")], rendered, "", "write it")

    with pytest.raises(SystemExit, match="write it"):
        write("--check")
    assert "1" in page.read_text()
    write()
    write("--check")
    assert page.read_text() == "before <!-- a -->2<!-- /a --> after"

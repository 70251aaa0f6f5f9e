"""What repeats stands once, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlbricks.analyzer.report.page.blocks import Block, outline
from hypothesis import given
from hypothesis import strategies as st


def unfolded(blocks: Sequence[Block], keys: str) -> Iterator[str]:
    """What an outline says, written out again."""
    for block in blocks:
        once = [*unfolded(block.inside, keys)] if block.inside else [keys[block.begin]]
        assert len(once) == block.width
        yield from once * block.count


@given(st.text(alphabet="abc", max_size=40))
def test_an_outline_written_out_is_the_model(keys: str) -> None:
    assert "".join(unfolded(outline(keys), keys)) == keys


def test_blocks_in_blocks_are_folded() -> None:
    stage = "abb"
    keys = f"s{stage * 3}t"

    (first, block, last) = outline(keys)

    assert (first.width, last.width) == (1, 1)
    assert (block.begin, block.width, block.count) == (1, 3, 3)
    assert [(one.width, one.count) for one in block.inside] == [(1, 1), (1, 2)]


def test_the_encoders_of_a_transformer_are_one_block() -> None:
    keys = "e" + "qkvsopn" * 12 + "p"

    assert [(block.width, block.count) for block in outline(keys)] == [(1, 1), (7, 12), (1, 1)]


def test_nothing_is_no_block() -> None:
    assert outline("") == ()

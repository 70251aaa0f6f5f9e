"""What a decoder reads in a loop: tokens, positions, masks and numbers, at any length."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.bricks.decoder import DecoderInput, InputRole
from dlbricks.generator.network.decoding import DecoderFile

TOKENS = np.array([[4, 5, 6], [7, 8, 9]])


def values(role: InputRole, shape, dtype: str = "int64", past: int = 2, **fixed: int) -> np.ndarray:
    """The values of an input of one role; text in the shape names an open axis."""
    sizes = tuple(None if isinstance(size, str) else size for size in shape)
    labels = tuple(size if isinstance(size, str) else "" for size in shape)
    entry = DecoderInput("x", role, dtype, sizes, labels)
    found = DecoderFile("f", (entry,), "logits", 10, shared=False, fixed=fixed).feeds(TOKENS, past)["x"]
    assert found.flags.c_contiguous
    return found


def test_tokens_and_positions_have_an_entry_for_each_new_token() -> None:
    np.testing.assert_array_equal(values(InputRole.TOKENS, ("b", "n"), "int32"), TOKENS)
    np.testing.assert_array_equal(values(InputRole.POSITIONS, ("b", "n")), [[2, 3, 4], [2, 3, 4]])
    np.testing.assert_array_equal(values(InputRole.POSITIONS, ("n",)), [2, 3, 4])
    assert values(InputRole.POSITIONS, (3, "b", "n")).shape == (3, 2, 3)
    assert values(InputRole.TOKENS, ("b", "n"), "int32").dtype == np.int32


def test_masks_show_the_cache_and_what_is_not_behind_a_token() -> None:
    seen = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]

    np.testing.assert_array_equal(values(InputRole.MASK, ("b", "t")), np.ones((2, 5)))
    np.testing.assert_array_equal(values(InputRole.MASK, ("b", 1, "n", "t"), "bool")[1, 0], np.array(seen, bool))
    added = values(InputRole.MASK, ("b", 1, "n", "t"), "float")[0, 0]
    np.testing.assert_array_equal(added == 0, np.array(seen, bool))
    assert added.min() <= -1e4


@pytest.mark.parametrize(
    ("role", "shape", "found"),
    [
        (InputRole.LAST, ("b",), [4, 4]),
        (InputRole.LAST, ("b", 1), [[4], [4]]),
        (InputRole.TOTAL, (), 5),
        (InputRole.TOTAL, (1,), [5]),
        (InputRole.LOGITS, (1,), [1]),
        (InputRole.BRANCH, (1,), [1]),
    ],
)
def test_numbers_follow_the_cache(role: InputRole, shape, found) -> None:
    np.testing.assert_array_equal(values(role, shape), found)


def test_a_prompt_takes_the_branch_without_a_cache() -> None:
    assert not values(InputRole.BRANCH, (1,), "bool", past=0).any()
    assert values(InputRole.BRANCH, (1,), "bool", past=1).all()


def test_other_dimensions_have_the_sizes_that_were_given() -> None:
    entry = DecoderInput("past", InputRole.CACHE, "float", (None, None, None, 8), ("b", "h", "p", ""), axis=2)
    decoder = DecoderFile("f", (entry,), "logits", 10, shared=False, fixed={"h": 3})

    assert decoder.caches == (entry,)
    assert decoder.cache_shape(entry, batch=2, positions=5) == (2, 3, 5, 8)

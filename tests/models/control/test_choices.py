"""How people say which course control flow takes."""

from __future__ import annotations

import pytest
from dlbricks.errors import UsageError
from dlbricks.models.control.choices import Choice, How, chosen, read_choices


def test_choices_as_people_write_them() -> None:
    found, observe = read_choices(["then", "a=b=else"], ["3", "Loop_0=12"])
    assert found == (Choice("", "then"), Choice("a=b", "else"), Choice("", 3), Choice("Loop_0", 12))
    assert not observe


@pytest.mark.parametrize(("branches", "trips"), [(["observed"], []), ([], ["observed"])])
def test_what_is_not_said_may_be_observed(branches: list[str], trips: list[str]) -> None:
    assert read_choices(branches, trips) == ((), True)


@pytest.mark.parametrize("word", ["", "both", "x=", "3", "x=observed"])
def test_no_branch(word: str) -> None:
    with pytest.raises(UsageError, match="--branch"):
        read_choices([word], [])


@pytest.mark.parametrize("word", ["", "-1", "then", "1.5", "x=", "9" * 40])
def test_no_trip_count(word: str) -> None:
    with pytest.raises(UsageError, match="--trip"):
        read_choices([], [word])


def test_a_choice_that_names_the_operator_wins() -> None:
    choices = [Choice("", "then"), Choice("b", "else"), Choice("b", 3)]
    assert chosen(choices, "a", branch=True) == Choice("", "then")
    assert chosen(choices, "b", branch=True) == Choice("b", "else")
    assert chosen(choices, "b", branch=False) == Choice("b", 3)
    assert chosen(choices, "a", branch=False) is None


def test_what_is_given_to_all_wins_over_what_was_observed() -> None:
    seen = Choice("a", "else", How.OBSERVED)
    assert chosen([seen, Choice("", "then")], "a", branch=True) == Choice("", "then")
    assert chosen([seen, Choice("b", "then")], "a", branch=True) == seen

"""What words on the command line mean."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from decoders import one_file
from dlbricks.cli.models import batches, dimension, lengths, moment, sizes


@pytest.mark.parametrize("text", ["2026-11-23T08:00Z", "2026-11-23T09:00+01:00"])
def test_a_moment_with_a_time_zone(text):
    assert moment(text) == datetime(2026, 11, 23, 8, tzinfo=UTC)


def test_a_moment_without_a_time_zone_is_local():
    assert moment("2026-11-23 08:00") == datetime(2026, 11, 23, 8).astimezone()
    assert moment("2026-11-23") == datetime(2026, 11, 23).astimezone()


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5d", 129600)])
def test_a_moment_that_long_ago(text, ago):
    before = datetime.now(UTC)

    found = moment(text) + timedelta(seconds=ago)

    assert before <= found <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["", "90", "2026", "yesterday", "-2h", "2026-13-01", "h", "999999999d"])
def test_what_is_no_moment(text):
    with pytest.raises(click.BadParameter, match="is not a time in the past"):
        moment(text)


# ``dlbricks tokens``, ranges of sizes, and decoders whose lengths stay open ----------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("128", (128,)),
        ("64..1024", (64, 128, 256, 512, 1024)),
        ("64..1000", (64, 128, 256, 512, 1000)),
        ("1,32..128,32", (1, 32, 64, 128)),
        ("5..5", (5,)),
    ],
)
def test_ranges_double_and_hold_their_end(text: str, found: tuple[int, ...]) -> None:
    assert sizes(text) == found
    assert dimension(f"past={text}") == ("past", found)


@pytest.mark.parametrize("text", ["", "x", "1..", "..4", "1..2..3", "-1", "4..2", "0..4", "1,", "1.. 2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not NAME=N"):
        dimension(f"past={text}")


def test_a_length_and_a_batch_are_at_least_one() -> None:
    assert lengths("1..4") == batches("1..4") == (1, 2, 4)
    with pytest.raises(click.BadParameter, match="at least 1"):
        lengths("0")
    with pytest.raises(click.BadParameter, match="not a list of batch sizes"):
        batches("0")


Cli = Callable[..., Any]


def test_a_file_that_tokens_does_not_understand_is_one_line_and_wrong_usage(cli: Cli, branches: Path) -> None:
    model = one_file()
    for value in model.graph.input[3:]:
        value.type.tensor_type.shape.dim[1].dim_param = "heads"
    onnx.save(model, branches.parent / "heads.onnx")

    for arguments, said in (
        (["branches.onnx"], "branches is not a decoder: none of its inputs (x) is a cache that an output extends"),
        (["heads.onnx"], "input 'past_key_values.0.key' has one free axis too many"),
        (["heads.onnx", "--dim", "heads=2", "--input", "position_ids=rows"], "--input position_ids=rows: no role"),
        (["heads.onnx", "--dim", "heads=2", "--prompt", "300"], "has 256 positions, and 428 are asked for"),
        (["heads.onnx", "--dim", "heads=2", "--value", "x=1"], "is one file, and its loop feeds every input"),
    ):
        done = cli("tokens", *arguments)
        assert (done.code, said in done.error) == (2, True), done.err


def test_refused_commands_are_one_line(cli: Cli, here: Path) -> None:
    assert "is not a decoder of the zoo" in cli("tokens", "resnet50").error
    assert "not a list of lengths" in cli("tokens", "gpt2", "--prompt", "8..").error
    assert "not a list of lengths" in cli("tokens", "gpt2", "--context", "x").error
    assert "nothing.so cannot be read" in cli("tokens", "gpt2", "--custom-ops", "nothing.so").error
    assert "cannot stay open" in cli("models", "export", "squeezenet", "--open", "-o", here).error
    assert "leave one of them out" in cli("models", "export", "gpt2", "--open", "--dim", "a=2", "-o", here).error
    assert not list(here.iterdir())


@pytest.mark.parametrize("command", ["estimate", "analyze", "kernels", "compare", "history", "advise"])
def test_a_misspelt_or_broken_model_is_told_before_a_missing_database(cli: Cli, here: Path, command: str) -> None:
    (here / "broken.onnx").write_bytes(b"\x08")

    assert "no file, folder, pattern or zoo name" in cli(command, "nosuch.onnx").error
    assert "broken.onnx" in cli(command, "broken.onnx").error
    assert "nosuch.onnx" in cli(command, "squeezenet", "nosuch.onnx").error
    assert "there is no database" in cli(command, "squeezenet").error

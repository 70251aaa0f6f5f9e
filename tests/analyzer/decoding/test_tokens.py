"""From two models to the time of an answer: lengths that are measured, those between, and those beyond."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dlbricks.analyzer.decoding.lengths import at_lengths, length_dimension, pair, sides_of
from dlbricks.analyzer.decoding.token_answer import token_figures, tokens_answer
from dlbricks.analyzer.decoding.tokens import Tokens, tokens
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.report.units import INTERRUPTED
from dlbricks.db import Store
from dlbricks.errors import ModelNotFound, UnboundDimension, UsageError
from dlbricks.generator.progress import Progress, Stage
from dlbricks.models.dimensions import DimensionKind
from dlbricks.models.user_inputs import UserInputs, input_types

from .conftest import PROMPT, write

Decoder = tuple[str, str]


@pytest.fixture(scope="module")
def measured(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokens]:
    """A database with both models at three lengths, and what is known with it."""
    path = tmp_path_factory.mktemp("tokens") / "dlbricks.db"
    with Store.open(path) as store:
        return path, tokens(*pair(decoder), store=store, prompts=[8, 20], new=13, lengths=[8, 16, 32], visits=2)


def test_an_answer_from_bricks_at_a_few_lengths(decoder: Decoder, measured: tuple[Path, Tokens]) -> None:
    path, found = measured
    with Store.open(path) as store:
        again = tokens(*pair(decoder), store=store, prompts=[20], new=2, lengths=[8, 16, 32])
        stored = tokens(*pair(decoder), store=store, prompts=[8, 20], new=13, lengths=[8, 16, 32], measure=False)

    assert found.complete
    assert all(report.measured > 0 for report in found.measured)
    assert len(found.measured) == 2
    assert again.measured == ()  # what is stored is not measured again
    assert stored.rows == found.rows
    short, between = found.rows
    prompts, steps = found.prompt.estimates, found.step.estimates
    assert list(prompts) == list(steps) == [8, 16, 32]
    assert short.ttft_ms == prompts[8].latency.ms
    assert not short.ttft_interpolated
    assert between.ttft_interpolated
    assert (short.steps, short.steps_interpolated) == (12, 10)  # of 8 to 19, 8 and 16 are measured
    assert between.total_ms is not None
    assert between.ttft_ms is not None
    assert between.token_ms is not None
    (still, _), quiet = found.undisturbed, prompts[8].latency.undisturbed_ms
    assert (still.ttft_ms, still.steps) == (quiet, 12)
    assert between.total_ms == pytest.approx(between.ttft_ms + 12 * between.token_ms)


def test_the_answer_says_what_is_measured_and_what_is_not(decoder: Decoder, measured: tuple[Path, Tokens]) -> None:
    with Store.open("sqlite://") as store:
        nothing = tokens(*pair(decoder), store=store, prompts=[8], new=2, lengths=[8, 16], measure=False)
    with Store.open(measured[0]) as store:
        found = tokens(*pair(decoder), store=store, prompts=[8, 20], new=30, lengths=[8, 16, 32], measure=False)
    text, record = render(tokens_answer(found)), found.to_json()

    assert "not measured" in render(tokens_answer(nothing))
    assert not nothing.complete
    assert not found.complete
    assert "step: past_length=33 to 48 is outside 8 to 32, and is not extrapolated" in text
    assert "1 length left out" in text
    assert record["results"][1]["total_ms"] is None
    assert record["results"][1]["ttft_interpolated"] is True
    assert [point["length"] for point in record["curves"]["step"]["points"]] == [8, 16, 32]
    assert [one["length"] for one in record["curves"]["step"]["left_out"]] == [16]
    assert list(found.frame()["prompt"]) == [8, 20]


def test_without_lengths_they_are_doubled_from_the_shortest_that_is_needed(decoder: Decoder) -> None:
    with Store.open("sqlite://") as store:
        found = tokens(*pair(decoder), store=store, prompts=[8, 20], new=13, measure=False)
        single = tokens(*pair(decoder), store=store, prompts=[8], new=1, measure=False)

        for wrong in ({"prompts": []}, {"prompts": [0]}, {"new": 0}, {"lengths": [0]}):
            with pytest.raises(UsageError, match="at least one token"):
                tokens(*pair(decoder), **{"store": store, "prompts": [8], "new": 2, "measure": False} | wrong)

    assert list(found.prompt.estimates) == [8, 16, 20]
    assert list(found.step.estimates) == [8, 16, 31]
    assert list(single.step.estimates) == []


def test_dimensions_are_found_or_named(decoder: Decoder) -> None:
    prompt, step = pair(decoder)

    assert length_dimension(prompt, DimensionKind.SEQUENCE, None, "--prompt-dim") == "sequence_length"
    assert length_dimension(step, DimensionKind.PAST, None, "--past-dim") == "past_length"
    assert [source.dims for source in at_lengths(step, "past_length", [4])] == [(("past_length", 4),)]
    with pytest.raises(UnboundDimension, match=r"no open dimension that counts positions.*sequence_length: --past-dim"):
        length_dimension(prompt, DimensionKind.PAST, None, "--past-dim")
    with pytest.raises(UnboundDimension, match="no dimension 'n'"):
        length_dimension(prompt, DimensionKind.SEQUENCE, "n", "--prompt-dim")


def test_a_pair_is_two_models_or_a_name_of_the_zoo(decoder: Decoder) -> None:
    assert [source.name for source in pair(["distilgpt2"])] == ["distilgpt2_prompt", "distilgpt2_step"]
    with pytest.raises(UsageError, match="'resnet50' is not a decoder of the zoo"):
        pair(["resnet50"])
    with pytest.raises(ModelNotFound):
        pair([decoder[0], "nosuch"])
    with pytest.raises(UsageError, match="3 models are not a prompt and a step"):
        pair([*decoder, "squeezenet"])


def test_limits_are_held_against_intervals(measured: tuple[Path, Tokens]) -> None:
    rows = tuple(replace(row, token_ci95_ms=(0.9 * row.token_ms, 1.1 * row.token_ms)) for row in measured[1].rows)

    figures = list(token_figures(replace(measured[1], rows=rows)).values())

    assert len(figures) == len(rows)
    for row, own in zip(rows, figures, strict=True):
        assert own["tokens/s"].value == row.tokens_per_s
        low, high = own["tokens/s"].interval
        assert low < row.tokens_per_s < high
        assert (1e3 / high, 1e3 / low) == pytest.approx(row.token_ci95_ms)


def test_own_values_are_for_inputs_that_do_not_follow_the_length(decoder: Decoder, tmp_path: Path) -> None:
    text = PROMPT.replace(" ids) =>", " ids, float scale) =>").replace(
        "s = MatMul(e, t)", "m = MatMul(e, t) s = Mul(m, scale)"
    )
    scaled = write(text, tmp_path / "scaled.onnx")
    files = [str(scaled), decoder[1]]

    prompt, step = sides_of(*pair(files, given=UserInputs(values=(("scale", "0.5"),))))

    (source,) = prompt.at([8])
    (feeds,) = source.given.of(input_types(source.skeleton().model.graph))
    assert feeds["scale"] == np.float32(0.5)
    assert not step.source.given  # it has no such input
    np.savez(tmp_path / "own.npz", scale=np.float32(2.0), other=np.zeros(3))
    of_file = prompt.source.given.only(["scale"]), UserInputs((tmp_path / "own.npz",)).only(["scale"])
    assert [given.names().keys() for given in of_file] == [{"scale"}, {"scale"}]
    for name, text, said in (
        ("ids", "1", "--value ids=1: the shape of 'ids' of scaled follows the length"),
        ("scale", "1,2", "takes one number"),
        ("temperature", "1", "no model has an input 'temperature'"),
    ):
        with pytest.raises(UsageError, match=said):
            sides_of(*pair(files, given=UserInputs(values=((name, text),))))


def test_what_is_known_is_answered_when_measuring_is_interrupted(
    decoder: Decoder, measured: tuple[Path, Tokens], tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage is Stage.SAMPLE:
            raise KeyboardInterrupt

    path = shutil.copy(measured[0], tmp_path / "some.db")
    with Store.open(path) as store:
        found = tokens(*pair(decoder), store=store, prompts=[8, 24], new=2, lengths=[8, 16, 24], progress=interrupt)

    assert isinstance(found.interrupted, KeyboardInterrupt)
    assert (found.rows[0].ttft_ms is not None, found.prompt.estimates[24].complete) == (True, False)
    assert tokens_answer(found).summary[-1] == INTERRUPTED

"""A decoder in one file: its prompt and steps from one model, and its loop beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from decoders import HEADS, SIZE, built, merged, one_file
from dlbricks.analyzer.decoding.lengths import decoder_models, sides_of
from dlbricks.analyzer.decoding.token_answer import tokens_answer
from dlbricks.analyzer.decoding.tokens import Tokens, tokens
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.setups import set_up
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.models import ModelSource, find_models

HOW: dict[str, Any] = {"prompts": [16], "new": 8, "contexts": [0, 40], "visits": 4}


def source_of(path: Path, model: onnx.ModelProto) -> ModelSource:
    onnx.save(model, path)
    (source,) = find_models([path])
    return source


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelSource, Tokens]:
    """A database, a decoder, and its times."""
    folder = tmp_path_factory.mktemp("one")
    source = source_of(folder / "decoder.onnx", one_file(2))
    with Store.open(folder / "dlbricks.db") as store:
        return folder / "dlbricks.db", source, tokens(source, store=store, **HOW)


def test_one_file_is_the_prompt_and_each_step(measured: tuple[Path, ModelSource, Tokens]) -> None:
    path, source, found = measured
    with Store.open(path) as store:
        stored = tokens(source, store=store, measure=False, **HOW)

    assert found.complete
    assert stored.rows == found.rows
    assert stored.loop is None
    assert list(found.prompt.estimates) == [16]
    assert list(found.step.estimates) == [0, 7, 16, 40]
    assert [entry.test for entry in found.rates] == ["pp16", "tg8", "pp16+tg8", "tg1 @ d0", "tg1 @ d40"]
    assert all(entry.tokens_per_s for entry in found.rates)
    (row,) = found.rows
    assert row.ttft_ms == found.rates[0].ms
    assert found.rates[3].ms == found.step.estimates[0].latency.ms
    assert {entry.parts.coverage.sequences for entry in found.step.estimates.values()} == {1.0}


def test_its_loop_takes_turns_with_the_bricks(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, _, found = measured

    assert found.loop is not None
    assert not found.loop.reason
    assert {(task.length, task.prompt) for task in found.loop.times} == {(16, True), (0, False), (40, False)}
    assert all(time.visits >= 3 and time.ms > 0 for time in found.loop.times.values())
    tests = {str(test["test"]): test for test in found.tests}
    assert tests["pp16+tg8"]["ratio"] is None  # the loop did not run this
    for name in ("pp16", "tg8", "tg1 @ d0", "tg1 @ d40"):
        low, high = tests[name]["ratio_ci95"]
        assert low < tests[name]["ratio"] < high
    assert tests["pp16"]["ratio"] == pytest.approx(tests["pp16"]["ms"] / tests["pp16"]["loop_ms"])


def test_the_answer_has_tests_memory_and_what_the_inputs_were_taken_for(
    measured: tuple[Path, ModelSource, Tokens],
) -> None:
    _, _, found = measured
    answer = tokens_answer(found)
    text, record = render(answer), found.to_json()

    assert "pp16+tg8" in text
    assert "tokens input_ids; positions position_ids; mask attention_mask; cache past_key_values.0.key" in text
    assert "the model's own loop took turns with the bricks" in text
    assert [test["test"] for test in record["tests"]] == [entry.test for entry in found.rates]
    assert record["memory"] == {
        "weight_bytes": found.memory.weight_bytes, "positions": 40, "position_bytes": 2 * 2 * HEADS * SIZE * 4,
        "cache_bytes": 40 * 2 * 2 * HEADS * SIZE * 4,
    }  # fmt: skip
    assert record["loop_reason"] is None
    assert [point["length"] for point in record["curves"]["step"]["points"]] == [0, 7, 16, 40]
    assert [point["length"] for point in record["curves"]["step"]["left_out"]] == [7, 16]
    assert render(answer, "markdown").startswith("| test | tokens/s")
    assert render(answer, "csv").splitlines()[0].startswith("prompt_model,step_model,batch,prompt,new,ttft_ms")


@pytest.mark.parametrize(
    "model", [merged(1), built(1, bits=4), built(1, shared=True)], ids=["merged", "four bits", "one buffer"]
)
def test_other_files_are_timed_without_options(tmp_path: Path, model: onnx.ModelProto) -> None:
    source = source_of(tmp_path / "decoder.onnx", model)
    with Store.open("sqlite://") as store:
        found = tokens(source, store=store, batch=2, **HOW | {"visits": 2})

    assert found.complete
    assert (found.batch, found.memory.cache_bytes) == (2, 2 * 40 * found.memory.position_bytes)
    assert found.rates[0].tokens == 2 * 16
    (row,) = found.rows
    assert row.tokens_per_s == pytest.approx(2000 / row.token_ms)


def test_a_step_behind_nothing_takes_the_branch_of_a_prompt(tmp_path: Path) -> None:
    prompt, step = sides_of(source_of(tmp_path / "decoder.onnx", merged(1)), None)

    assert [source.name for source in step.at([0, 8])] == ["decoder@context=0", "decoder@context=8"]
    assert [source.control[0].course for source in (*prompt.at([8]), *step.at([0, 8]))] == ["else", "else", "then"]
    assert dict(step.at([8])[0].dims)["total"] == 9


def test_a_loop_that_cannot_run_says_why_and_the_estimate_stays(tmp_path: Path) -> None:
    source = source_of(tmp_path / "decoder.onnx", one_file(1))
    setup = set_up(backend="torch")
    with Store.open("sqlite://") as store:
        found = tokens(source, store=store, setup=setup, **HOW | {"visits": 2, "contexts": [16]})
        without = tokens(source, store=store, setup=setup, loop=False, **HOW | {"visits": 2, "contexts": [16]})

    assert not found.complete
    assert "the loop did not run: backend torch does not run the loop of a decoder" in render(tokens_answer(found))
    assert without.complete


def test_lengths_beyond_the_model_are_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path / "decoder.onnx", one_file(1))
    with Store.open("sqlite://") as store:
        found = tokens(source, store=store, measure=False, prompts=[16], new=8)
        with pytest.raises(UsageError, match="decoder has 256 positions, and 258 are asked for"):
            tokens(source, store=store, measure=False, prompts=[250], new=8)
        with pytest.raises(UsageError, match="decoder has 256 positions, and 257 are asked for"):
            tokens(source, store=store, measure=False, prompts=[16], new=8, contexts=[256])

    assert [entry.context for entry in found.rates if entry.test.startswith("tg1 ")] == [0]  # not 512 and 2,048


def test_options_belong_to_one_file_or_to_two(tmp_path: Path, decoder: tuple[str, str]) -> None:
    source = source_of(tmp_path / "decoder.onnx", one_file(1))
    pair = decoder_models(decoder)

    assert decoder_models([str(tmp_path / "decoder.onnx")])[1] is None
    assert pair[1] is not None
    with pytest.raises(UsageError, match="--input tells roles of a file with prompt and step"):
        sides_of(*pair, roles={"ids": "tokens"})
    with pytest.raises(UsageError, match="--prompt-dim and --past-dim name dimensions of two models"):
        sides_of(source, None, past_dimension="past")
    with pytest.raises(UsageError, match="'squeezenet' is no file with prompt and step"):
        sides_of(*find_models(["squeezenet"]), None)

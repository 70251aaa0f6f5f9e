"""A decoder in one file: its prompt and steps from one model, and its loop beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from decoders import HEADS, SIZE, built, merged, one_file
from dlbricks.analyzer.decoding.beside import Loop, LoopReport, LoopTask, LoopTime, running_loop
from dlbricks.analyzer.decoding.lengths import decoder_models, sides_of
from dlbricks.analyzer.decoding.token_answer import tokens_answer
from dlbricks.analyzer.decoding.tokens import Tokens, tokens
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.setups import set_up
from dlbricks.constructor.curve import Curve, Point
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.machine.lock import work_clock
from dlbricks.generator.worker.messages import Answer
from dlbricks.models import ModelSource, find_models

HOW: dict[str, Any] = {"prompts": [8], "new": 4, "contexts": [0], "visits": 3}


def source_of(path: Path, model: onnx.ModelProto) -> ModelSource:
    onnx.save(model, path)
    (source,) = find_models([path])
    return source


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelSource, Tokens]:
    """A database, a decoder, and its times."""
    folder = tmp_path_factory.mktemp("one")
    source = source_of(folder / "decoder.onnx", one_file(1))
    with Store.open(folder / "dlbricks.db") as store:
        return folder / "dlbricks.db", source, tokens(source, store=store, **HOW)


def test_one_file_is_the_prompt_and_each_step(measured: tuple[Path, ModelSource, Tokens]) -> None:
    path, source, found = measured
    with Store.open(path) as store:
        stored = tokens(source, store=store, measure=False, budget_s=1e-6, **HOW)

    assert found.complete
    assert stored.rows == found.rows
    assert stored.loop is None
    assert "s of work for a budget of 1e-06 s: " in render(tokens_answer(stored))
    assert stored.to_json()["unasked"] == [*stored.unasked]
    assert list(found.prompt.estimates) == [8]
    assert list(found.step.estimates) == [0, 11]
    assert [entry.test for entry in found.rates] == ["pp8", "tg4", "pp8+tg4", "tg1 @ d0"]
    assert all(entry.tokens_per_s for entry in found.rates)
    (row,) = found.rows
    assert row.ttft_ms == found.rates[0].ms
    assert found.rates[3].ms == found.step.estimates[0].latency.ms
    assert {entry.parts.coverage.sequences for entry in found.step.estimates.values()} == {1.0}


def test_its_loop_takes_turns_with_the_bricks(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, _, found = measured

    assert found.loop is not None
    assert not found.loop.reason
    assert {(task.length, task.prompt) for task in found.loop.times} == {(8, True), (0, False)}
    assert all(time.visits >= 3 and time.ms > 0 for time in found.loop.times.values())
    tests = {str(test["test"]): test for test in found.tests}
    assert tests["pp8+tg4"]["ratio"] is None  # the loop did not run this
    assert tests["tg4"]["ratio"] == tests["tg1 @ d0"]["ratio"]  # both of the steps behind an empty cache
    assert tests["pp8"]["ratio"] == pytest.approx(tests["pp8"]["ms"] / tests["pp8"]["loop_ms"])


def test_bricks_of_an_earlier_call_did_not_take_turns_with_the_loop(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, _, found = measured
    stored = replace(found, measured=())

    assert any(test["ratio_ci95"] for test in found.tests)
    assert not any(test["ratio_ci95"] for test in stored.tests)
    assert "own loop ran now, and the bricks were measured before" in render(tokens_answer(stored))


class Slow:
    """A worker whose first executions of each length take a hundred times as long."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def answer(self, wanted: Answer, timeout_s: float) -> SimpleNamespace:
        where = wanted.past, wanted.first
        each = 1_000_000 if where in self.seen else 100_000_000
        self.seen.add(where)
        return SimpleNamespace(tokens_ns=(each,) * wanted.new)


TASKS = (LoopTask(64, prompt=True), LoopTask(64, prompt=False), LoopTask(512, prompt=False))


def test_the_first_visit_of_each_part_of_the_loop_is_not_counted() -> None:
    loop = Loop(Slow(), TASKS, 1, None)

    loop.finish(math.inf)

    report = loop.report()
    assert report.complete
    assert [(time.visits, time.ms) for time in report.times.values()] == [(3, 1.0)] * 3


@pytest.mark.parametrize(
    ("budget_s", "loop", "decomposing_s"), [(20.0, True, 10.0), (90.0, True, 75.0), (20.0, False, 20.0)]
)
def test_decomposing_leaves_time_for_the_loop(
    measured: tuple[Path, ModelSource, Tokens], budget_s: float, loop: bool, decomposing_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path, source, _ = measured
    given = list[float]()

    def noted(until: float) -> None:
        given.append(until - work_clock())
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("dlbricks.analyzer.decoding.tokens"), "decomposing_until", noted)
    with Store.open(path) as store, pytest.raises(KeyboardInterrupt):
        tokens(source, store=store, budget_s=budget_s, loop=loop, **HOW)

    assert decomposing_s - 5.0 < given[0] <= decomposing_s


def test_the_loop_is_shown_where_bricks_are_missing(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, _, found = measured
    unknown = Curve.through([])
    bare = replace(found, prompt=replace(found.prompt, curve=unknown), step=replace(found.step, curve=unknown))

    test = bare.tests[0]

    assert test["loop_ms"] == found.tests[0]["loop_ms"] is not None
    assert (test["ratio"], test["ratio_ci95"]) == (None, None)
    assert "loop, ms per call" in render(tokens_answer(bare))


def test_what_cached_positions_add_has_the_error_of_both_ends(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, _, found = measured
    points = [Point(1, 10.0, (9.0, 11.0)), Point(2001, 14.0, (13.0, 15.0))]

    text = render(tokens_answer(replace(found, step=replace(found.step, curve=Curve.through(points)))))

    assert "a token behind 0 positions takes 10.0 ms; each 1,000 cached positions add 2.00 ± 0.71 ms" in text


@pytest.mark.parametrize(("visits", "known"), [(0, 0), (3, 0), (4, 1), (6, 3)])
def test_parts_of_the_loop_for_which_there_was_no_time_are_told(visits: int, known: int) -> None:
    loop = Loop(Slow(), TASKS, 1, None)
    for _ in range(visits):
        loop._visit(few=True)

    report = loop.report()

    assert len(report.times) == known
    assert report.complete == (known == 3)
    assert (f"{3 - known} of its 3 parts" in report.reason) == (known < 3)


def test_a_ratio_has_the_errors_of_both_sides() -> None:
    taken = LoopTime(visits=3, ms=10.0, ci95_ms=(9.6, 10.4), tokens=45)

    ratio, interval = taken.ratio(11.0, (10.67, 11.33))

    assert ratio == pytest.approx(1.1)
    assert interval == pytest.approx((1.1 * 0.95, 1.1 * 1.05))  # 3 % and 4 %
    assert taken.ratio(11.0, None) == (pytest.approx(1.1), None)
    assert replace(taken, ci95_ms=None).ratio(11.0, (10.0, 12.0))[1] is None


def test_the_answer_has_tests_memory_and_what_the_inputs_were_taken_for(
    measured: tuple[Path, ModelSource, Tokens],
) -> None:
    _, _, found = measured
    answer = tokens_answer(found)
    text, record = render(answer), found.to_json()

    assert "pp8+tg4" in text
    assert "prompt of 8: first token after" in text
    assert "a token behind 0 positions (ms): weights" in text
    assert "to try remedies for a token behind 11 positions: dlbricks report" in text
    assert "tokens input_ids; positions position_ids; mask attention_mask; cache past_key_values.0.key" in text
    assert "the model's own loop took turns with the bricks" in text
    assert [test["test"] for test in record["tests"]] == [entry.test for entry in found.rates]
    assert record["memory"] == {
        "weight_bytes": found.memory.weight_bytes, "positions": 12, "position_bytes": 2 * HEADS * SIZE * 4,
        "cache_bytes": 12 * 2 * HEADS * SIZE * 4,
    }  # fmt: skip
    assert record["loop_reason"] is None
    assert [point["length"] for point in record["curves"]["step"]["points"]] == [0, 11]
    point = record["curves"]["step"]["points"][0]
    assert [part["name"] for part in point["parts"]] == ["weights", "head", "attention", "shapes", "others"]
    assert sum(part["ms"] for part in point["parts"]) == pytest.approx(point["estimate_ms"], rel=0.2)  # plus a call
    assert render(answer, "markdown").startswith("| test | tokens/s")
    assert render(answer, "csv").splitlines()[0].startswith("prompt_model,step_model,batch,prompt,new,ttft_ms")


@pytest.mark.parametrize(
    "model",
    [merged(1), built(1, bits=4, packed=True), built(1, bits=4, shared=True)],
    ids=["merged", "builder", "one buffer"],
)
def test_other_files_are_timed_without_options(tmp_path: Path, model: onnx.ModelProto) -> None:
    source = source_of(tmp_path / "decoder.onnx", model)
    with Store.open("sqlite://") as store:
        found = tokens(source, store=store, batch=2, prompts=[8], new=1, contexts=[8], visits=2)

    assert found.complete
    assert (found.batch, found.memory.cache_bytes) == (2, 2 * 9 * found.memory.position_bytes)
    assert [(entry.test, entry.tokens) for entry in found.rates] == [("pp8", 16), ("pp8+tg1", 18), ("tg1 @ d8", 2)]
    assert found.rates[2].tokens_per_s == pytest.approx(2000 / found.rates[2].ms)


def test_a_step_behind_nothing_takes_the_branch_of_a_prompt(tmp_path: Path) -> None:
    prompt, step = sides_of(source_of(tmp_path / "decoder.onnx", merged(1)), None)

    assert [source.name for source in step.at([0, 8])] == ["decoder@context=0", "decoder@context=8"]
    assert [source.control[0].course for source in (*prompt.at([8]), *step.at([0, 8]))] == ["else", "else", "then"]
    assert dict(step.at([8])[0].dims)["total"] == 9


def test_a_loop_that_cannot_run_says_why(measured: tuple[Path, ModelSource, Tokens]) -> None:
    _, source, found = measured
    _, step = sides_of(source, None)
    beyond, elsewhere = LoopTask(400, prompt=False), set_up(backend="openvino")

    with running_loop(step, set_up(), [beyond], None) as loop:
        assert isinstance(loop, Loop)
        loop.finish(math.inf)
        refused = loop.report()
    with running_loop(step, elsewhere, [beyond], None) as report:
        assert report == LoopReport(reason="backend openvino does not run the loop of a decoder", possible=False)
        assert replace(found, loop=report).complete

    assert "idx=384" in refused.reason  # the model has 256 positions
    assert not refused.times
    unfinished = replace(found, loop=refused)
    assert not unfinished.complete
    assert f"the loop did not run: {refused.reason}" in render(tokens_answer(unfinished))


def test_lengths_beyond_the_model_are_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path / "decoder.onnx", one_file(1))
    with Store.open("sqlite://") as store:
        found = tokens(source, store=store, measure=False, prompts=[8], new=4)
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
    with pytest.raises(UsageError, match="'squeezenet' is not a file with prompt and step"):
        sides_of(*find_models(["squeezenet"]), None)

"""The gate: two models run alternately in several processes."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.comparison import gate as module
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.comparison.gate import FEWEST, MOST, gate, judged
from dlbricks.analyzer.report.answers.comparison import gate_answer, gate_figures
from dlbricks.generator.measurement.trial import Trial
from dlbricks.models import find_models
from hypothesis import given
from hypothesis import strategies as st


def trial(ratio: float, *, processes: int = 4, scatter: float = 0.005, seed: int = 0) -> Trial:
    """Visits whose processes differ by some scatter."""
    draw = np.random.default_rng(seed)
    before = [draw.normal(20e6, 1e5, 16) for _ in range(processes)]
    after = [side * ratio * math.exp(draw.normal(0, scatter)) * draw.normal(1, 0.01, 16) for side in before]
    return Trial(tuple(before), tuple(after), 0.0)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.0, Relation.SAME), (1.12, Relation.SLOWER), (0.88, Relation.FASTER)],
)
def test_verdicts(ratio, verdict):
    levels, detectable, found = judged(trial(ratio), 0.05)

    low, high = levels.difference.ci95
    assert found is verdict
    assert low < ratio < high
    assert 0.025 < detectable < 0.06  # beyond half of the minimum effect
    assert levels.before_ms == pytest.approx(20, rel=0.02)


@pytest.mark.parametrize(("ratio", "told"), [(1.0, (0.0, 0.01)), (1.03, (0.95, 1.0))])
def test_what_is_as_large_as_the_minimum_effect_is_found_and_what_is_equal_is_not(ratio, told):
    """Processes are added until the verdict is clear, as ``alternate`` does."""

    def verdict(seed: int) -> tuple[Relation, bool]:
        whole = trial(ratio, processes=MOST, seed=seed)
        for count in range(FEWEST, MOST + 1):
            levels, _, found = judged(Trial(whole.before_ns[:count], whole.after_ns[:count], 0.0), 0.03)
            if found is not Relation.UNCLEAR:
                break
        low, high = levels.difference.ci95
        return found, low <= ratio <= high

    found, held = zip(*(verdict(seed) for seed in range(200)), strict=True)

    assert told[0] <= found.count(Relation.SLOWER) / len(found) <= told[1]
    assert Relation.FASTER not in found
    assert sum(held) / len(held) >= 0.93


@pytest.mark.parametrize("scatter", [0.002, 0.01, 0.03])
def test_what_is_called_detectable_is_found_in_four_of_five_cases(scatter: float):
    def seen(ratio: float, seed: int) -> tuple[float, Relation]:
        return judged(trial(ratio, processes=8, scatter=scatter, seed=seed), 0.03)[1:]

    detectable = statistics.median(seen(1.03, seed)[0] for seed in range(100))
    found = [seen(1 + detectable, seed)[1] for seed in range(100, 300)]

    assert 0.65 < found.count(Relation.SLOWER) / len(found) < 0.95


def test_a_missing_process_does_not_change_the_order_of_the_others():
    whole = trial(1.0, processes=8, scatter=0.001)
    after = [side * (1.01 if process % 2 else 0.99) for process, side in enumerate(whole.after_ns)]
    kept = [process for process in range(8) if process != 2]

    levels, *_ = judged(
        Trial(
            tuple(whole.before_ns[process] for process in kept),
            tuple(after[process] for process in kept),
            0.0,
            second_first=tuple(process % 2 == 1 for process in kept),
        ),
        0.03,
    )

    assert levels.difference.ratio == pytest.approx(1.0, abs=0.004)
    low, high = levels.difference.ci95
    assert high - low < 0.01


@given(st.floats(0.5, 2), st.integers(FEWEST, 8), st.integers(0, 100))
def test_swapping_both_models_swaps_the_verdict(ratio, processes, seed):
    made = trial(ratio, processes=processes, seed=seed)
    swapped = Trial(made.after_ns, made.before_ns, 0.0)

    ours, theirs = judged(made, 0.05), judged(swapped, 0.05)

    assert theirs[0].difference.ratio == pytest.approx(1 / ours[0].difference.ratio)
    assert theirs[1] == pytest.approx(ours[1])
    swap = {Relation.SLOWER: Relation.FASTER, Relation.FASTER: Relation.SLOWER}
    assert theirs[2] is swap.get(ours[2], ours[2])


def test_the_interval_of_the_new_latency_is_over_processes():
    levels, *_ = judged(trial(1.0, scatter=0.05, processes=6), 0.05)

    low, high = levels.after_ci95_ms
    assert low < levels.after_ms < high
    assert (high - low) / levels.after_ms == pytest.approx(2 * 2.57 * 0.05 / math.sqrt(6), rel=0.7)


def test_few_processes_decide_nothing():
    levels, detectable, verdict = judged(trial(2.0, processes=FEWEST - 1), 0.05)

    assert verdict is Relation.UNCLEAR
    assert (levels.difference.ci95, detectable) == ((0.0, math.inf), math.inf)


def test_a_machine_too_restless_for_the_question_is_told():
    _, detectable, verdict = judged(trial(1.0, scatter=0.2), 0.05)

    assert verdict is Relation.UNCLEAR
    assert detectable > 0.05


def test_an_unclear_gate_does_not_pass(cli, branches: Path, here: Path, monkeypatch):
    monkeypatch.setattr(module, "MOST", FEWEST - 1)
    copy = here / "copy.onnx"
    copy.write_bytes(branches.read_bytes())

    done = cli("compare", branches, copy, "--fail-on", "slower", "--json")
    shown = cli("compare", branches, copy)

    assert (done.code, shown.code) == (5, 3)
    (row,) = json.loads(done.out)["results"]
    assert (row["verdict"], row["detectable"]) == ("UNCLEAR", None)
    assert "--budget" in row["reason"]


@pytest.mark.parametrize(
    ("limit", "code", "told"),
    [("size>0.1kB", 4, "crossed"), ("size>1GB", 3, "kept"), ("size>5", 2, "kB or MB"), ("p99>1ms", 2, "size")],
)
def test_a_limit_on_the_new_file_is_told(
    cli, branches: Path, here: Path, monkeypatch, limit: str, code: int, told: str
):
    monkeypatch.setattr(module, "MOST", FEWEST - 1)
    copy = here / "copy.onnx"
    copy.write_bytes(branches.read_bytes())

    done = cli("compare", branches, copy, "--fail-on", limit)

    assert done.code == code
    assert told in done.out + done.err


@pytest.mark.slow
def test_two_files_are_run_alternately_and_nothing_is_stored(cli, branches: Path, here: Path):
    copy = here / "copy.onnx"
    copy.write_bytes(branches.read_bytes())

    done = cli("compare", branches, copy, "--minimum-effect", "300%", "--alone", "--json")

    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["results"]
    assert (row["old"], row["new"], row["verdict"], row["largest_error"]) == ("branches", "copy", "SAME", 0.0)
    assert row["ratio_ci95"][0] <= row["ratio"] <= row["ratio_ci95"][1]
    assert (row["processes"], row["visits"]) == (4, 64)
    for side in ("old", "new"):
        assert 0 < row[f"{side}_memory_steady_mb"] <= row[f"{side}_memory_peak_mb"]
    assert [*here.glob("*.db")] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--by", "file"), "models given: 1"),
        (("copy.onnx", "--stack", "ab"), "--stack does not concern two files"),
        (("copy.onnx", "--other", "ab"), "--other does not concern two files"),
        (("copy.onnx", "--plot", "a.png"), "--plot does not concern two files"),
        (("--by", "run", "--alone"), "--alone is for two files that run now"),
        (("copy.onnx", "--budget", "0.001"), "larger --budget"),
        (("copy.onnx", "--minimum-effect", "0"), "not a positive share"),
        (("copy.onnx", "--minimum-effect", "10"), "write 10% or 1000%"),
    ],
)
def test_what_it_is_not_for_is_refused(cli, branches: Path, here: Path, monkeypatch, words, said):
    monkeypatch.chdir(here)
    (here / "copy.onnx").write_bytes(branches.read_bytes())

    done = cli("compare", branches, *words)

    assert done.code in {1, 2}
    assert said in done.err


IO = "(float[4, 8] x) => (float[4, 8] y) {y = Relu(x)}"


@pytest.mark.parametrize(
    ("graph", "said", "compared"),
    [
        (IO, "their outputs differ by at most 0.0e+00", ""),
        (
            "(float[4, 8] z) => (float[4, 8] y) {y = Relu(z)}",
            "outputs are not compared: old has no input like z float32[4, 8] of new",
            "input x float32[4, 8] only in old; input z float32[4, 8] only in new",
        ),
        (
            "(float[2, 8] x) => (float[2, 8] y) {y = Relu(x)}",
            "outputs are not compared: old has no input like x float32[2, 8] of new",
            "input x float32[4, 8] is float32[2, 8] in new; output y float32[4, 8] is float32[2, 8] in new",
        ),
        (
            "(float[4, 8] x) => (float[4, 8] y, float[8, 4] t) {y = Relu(x) t = Transpose(x)}",
            "the outputs that both have differ by at most 0.0e+00",
            "output t float32[8, 4] only in new",
        ),
        (
            "(float[4, 8] x) => (float[8, 4] y) {y = Transpose(x)}",
            "outputs are not compared: none is in both files, in one shape",
            "output y float32[4, 8] is float32[8, 4] in new",
        ),
    ],
    ids=["same", "renamed input", "other batch", "more outputs", "other output"],
)
def test_what_two_files_read_and_make_is_compared(tmp_path: Path, graph: str, said: str, compared: str):
    for name, text in (("old", IO), ("new", graph)):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    old, new = find_models([tmp_path / "old.onnx", tmp_path / "new.onnx"])

    found = gate(old, new, budget_s=2.0)

    lines = gate_answer(found).summary
    told = [line for line in lines if "differ in what they read and make: " in str(line)]
    assert told == ([f"the files differ in what they read and make: {compared}"] if compared else [])
    assert any(str(line).startswith(said) for line in lines)
    (row,) = found.records().results
    assert bool(row["interface"]["inputs"] or row["interface"]["outputs"]) == bool(compared)
    lacks_one = any(value["new"] != value["old"] and value["old"] for value in row["interface"]["outputs"])
    assert (gate_figures(found, new)["difference"].value == math.inf) == lacks_one

"""A faster file in one step. No latency is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.finding import IMPROVE, REWRITES, Finding, Proof, Remedy
from dlbricks.analyzer.findings.improve import _rest, improve, rewrite_findings
from dlbricks.analyzer.findings.stored_proofs import OTHERS
from dlbricks.analyzer.report.answers.findings import improve_answer
from dlbricks.analyzer.rewriting.process import Find
from dlbricks.analyzer.rewriting.recording import apart, session
from dlbricks.errors import WorkerError, WorkerOutOfMemory, WorkerTimeout
from dlbricks.generator.progress import Progress
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Reply, Request
from dlbricks.models import ModelSource, find_models
from onnx import numpy_helper

SLOW = "(float[256,64] x) => (float[256,64] y) {a = MatMul(x, u) b = MatMul(a, v) c = Tanh(b) y = MatMul(c, w)}"
"""Two products through a wide value, which one small product replaces at a fraction of their cost."""

CLEAN = "(float[256,64] x) => (float[256,64] y) {a = Relu(x) y = MatMul(a, w)}"


def source_of(folder: Path, graph: str) -> ModelSource:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {graph}')
    random, read = np.random.default_rng(0), {name for node in model.graph.node for name in node.input}
    for name, shape in (("u", (64, 4096)), ("v", (4096, 64)), ("w", (64, 64))):
        if name in read:
            array = (random.standard_normal(shape) / 64).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "model.onnx")
    (source,) = find_models([folder / "model.onnx"])
    return source


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return source_of(tmp_path_factory.mktemp("slow"), SLOW)


def test_an_improved_file_computes_the_same_and_says_what_changed(slow: ModelSource, tmp_path: Path):
    found = improve(slow, tmp_path / "faster.onnx", budget_s=60)

    assert found.proof is not None
    assert found.proof.ci95[0] <= found.proof.saving <= found.proof.ci95[1]
    assert (found.path is not None) == found.proof.saves == bool(found.changes)
    assert replace(found, untried=("order",)).complete, "a proven file is what was asked for"
    assert found.path is not None  # each costs several times what stands in its place
    x = np.random.default_rng(3).standard_normal((256, 64)).astype(np.float32)
    before, after = (session(str(path)).run(None, {"x": x})[0] for path in (slow.path, found.path))
    assert apart(after, before) < 1e-4
    text = "\n".join(improve_answer(found).summary)
    assert "all changes together" in text
    assert "equal for every input up to rounding" in text
    assert found.records().results[0]["saving"] == found.proof.saving

    proof = Proof(2.0, 1.2, 0.8, (0.7, 0.9), 0.0, None)
    threads = Finding("threads", "Two threads.", Remedy("threads", ""), proof=proof)
    assert (
        "  proven before, without a file: Two threads: 40% less"
        in improve_answer(replace(found, others=(threads,))).summary
    )


def test_a_clean_model_has_no_change(tmp_path: Path):
    found = improve(source_of(tmp_path, CLEAN), tmp_path / "faster.onnx", budget_s=20, settings=False)

    assert not found.changes
    assert found.path is None
    assert not (tmp_path / "faster.onnx").exists()
    assert "nothing is written" in "\n".join(improve_answer(found).summary)


def test_proven_changes_are_findings_of_one_file(slow: ModelSource, tmp_path: Path):
    proven, rest, complete = rewrite_findings(slow, 2.0, threads=1, budget_s=60, write=tmp_path, database="my.db")

    assert proven
    assert all("--db my.db" in found.remedy.code for found in proven if found.remedy.action == IMPROVE)
    assert complete
    assert all(found.proof is not None and found.unproven is None for found in proven)
    assert len({found.proof.together for found in proven if found.proof}) == 1
    assert {found.proof.artefact for found in proven if found.proof} == {str(tmp_path / "model-improved.onnx")}
    assert all(found.saving_ms == pytest.approx(2.0 * found.share) for found in proven)
    assert all(found.unproven for found in rest)


def test_own_inputs_that_do_not_fit_are_wrong_usage(cli, slow: ModelSource, tmp_path: Path):
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 64), np.float32))

    result = cli("improve", slow.path, "--data", tmp_path / "own.npz", "--budget", "5s")

    assert result.code == 2
    assert "own.npz: 'x' is float32[2, 64], and the input is float32[256, 64]" in result.err


def test_a_database_that_is_named_is_made_and_keeps_what_was_proven(cli, slow: ModelSource, here: Path):
    assert cli("improve", slow.path, "-o", "faster.onnx", "--db", "new.db", "--budget", "20s", "-q").code == 0

    known = cli("analyze", slow.path, "--db", "new.db")

    assert "proven, alternating" in known.out
    assert f"not tried: {', '.join(OTHERS)}; run: dlbricks analyze " in known.out
    assert not (here / "dlbricks.db").exists()


def test_a_printed_command_has_the_options_of_the_call(slow: ModelSource, tmp_path: Path):
    (source,) = find_models([slow.path], dims={"rows": 3}, data=[Path("own.npz")], values={"k": "1,2"})

    command = _rest(source, Path("out.onnx"), 10.0, 2, None)

    rest = "--value k=1,2 --data own.npz -o out.onnx --budget 40s --threads 2"
    assert command == f"dlbricks improve {slow.path} --dim rows=3 {rest}"


def test_large_outputs_that_are_copies_are_told_with_what_they_cost(tmp_path: Path):
    graph = "(float[64,64] x, float[1024,1024] past) => (float[64,64] y, float[1024,1024] kept) {y = MatMul(x, w) kept = Identity(past)}"  # noqa: E501

    found = improve(source_of(tmp_path, graph), budget_s=20, settings=False)

    assert [(copy.output, copy.source, copy.nbytes) for copy in found.copies] == [("kept", "past", 4 << 20)]
    assert found.copies_proof is not None
    (line,) = (line for line in improve_answer(found).summary if "copies" in line)
    assert "kept = past" in line
    assert "% less" in line


@pytest.mark.parametrize("interrupted", ["search", "proof"])
def test_rewrites_are_shown_as_unproven_after_an_interruption(
    slow: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
):
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    answered = Worker.ask

    def ask(worker: Worker, request: Request, *rest: Any) -> Reply:
        reply = answered(worker, request, *rest)
        if isinstance(request, Find):  # before its reply is read, so that only the files of the search tell of it
            raise KeyboardInterrupt
        return reply

    if interrupted == "search":
        monkeypatch.setattr(Worker, "ask", ask)

    found = improve(slow, tmp_path / "faster.onnx", budget_s=20, settings=False, progress=interrupt)

    assert isinstance(found.interrupted, KeyboardInterrupt)
    assert found.unproven
    assert found.untried[-1] == "what the interrupt left"
    summary = improve_answer(found).summary
    assert "no saving is proven before the interrupt" in summary[0]
    assert f"what the interrupt left: {found.command}" in summary[-1]
    assert (found.path, found.changes) == (None, ())
    assert not (tmp_path / "faster.onnx").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (WorkerOutOfMemory("the memory limit was hit"), "the memory limit was hit"),
        (WorkerTimeout("no answer"), "one of its steps took too long"),
    ],
)
def test_a_search_that_died_left_something_untried(
    slow: ModelSource, monkeypatch: pytest.MonkeyPatch, error: WorkerError, told: str
):
    answered, limits = Worker.ask, []

    def ask(worker: Worker, request: Request, expected: type[Reply], timeout_s: float) -> Reply:
        reply = answered(worker, request, expected, timeout_s)
        if isinstance(request, Find):
            limits.append(timeout_s / request.request.budget_s)
            raise error
        return reply

    monkeypatch.setattr(Worker, "ask", ask)

    found = improve(slow, budget_s=20, settings=False)

    assert found.untried[-1] == "further rewrites"
    assert ("further rewrites", f"the search ended: {told}") in found.rejected
    assert all(limit < 3 for limit in limits), "a step must not take much longer than the whole search may"


def test_an_interruption_before_the_search_leaves_all_rewrites_untried(slow: ModelSource):
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    found = improve(slow, budget_s=20, progress=interrupt)

    assert isinstance(found.interrupted, KeyboardInterrupt)
    assert (found.changes, found.unproven, found.untried) == ((), (), (REWRITES,))
    assert "--budget 80s" in found.command


def test_an_analysis_does_not_go_on_after_an_interrupted_proof(slow: ModelSource):
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite_findings(slow, None, threads=1, budget_s=20, write=None, database="my.db", progress=interrupt)

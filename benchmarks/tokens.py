"""Compare predicted times of answers with a loop in ONNX Runtime (docs/how-to/language-models.md).

    python benchmarks/tokens.py [--models NAME ...] [--prompts N ...] [--new N] [--visits N] [--out DIR]
                                [--fuse-attention] [--weights int4|int8]

For each decoder of the zoo, written with open lengths and seeded weights, as exported or as people deploy it:

1. ``dlbricks.analyzer.tokens`` measures bricks of the prompt and of the step at a few lengths and predicts.
2. Between its visits, in the same run, a loop executes the same two files: the prompt once, then one step per token,
   the ``present`` of each the ``past`` of the next. Binding and execution are timed; the choice of the next token is
   not. Other programs stretch long executions more than short ones. Therefore the loop's processor time (one thread,
   the least tenth) is compared with ``undisturbed_ms`` as well. The loop runs in one process, so that the place of
   that process's memory is part of its time (docs/explanation/measuring.md).

The loop uses the same memory pages as bricks: the script restarts if NumPy would request huge pages, which weights
would then share by accident.

Written under ``--out``: ``tokens.json``; other models of an earlier run stay there.
``--db`` keeps the measurements.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from dlbricks import __version__
from dlbricks.analyzer.decoding.lengths import pair
from dlbricks.analyzer.decoding.tokens import Tokens, tokens
from dlbricks.analyzer.setups import set_up
from dlbricks.db import Store
from dlbricks.generator.machine.lock import machine_lock
from dlbricks.generator.network.export import export_model
from dlbricks.generator.progress import Progress
from dlbricks.models import find_models
from figures import number, parser, percent, read, table, write

_SHARE = 0.5
"""Share of the bricks' measuring time that the loop gets."""

_LOW = 0.1
"""Quantile of processor times that represents a machine without other programs."""

_PAGES = "NUMPY_MADVISE_HUGEPAGE"

_KINDS = ("ttft", "ttft_quiet", "token", "token_quiet")
"""Time to first token, and time per token; undisturbed ones as well."""

_POSITIONS = {"gpt2": 1024, "distilgpt2": 1024}
"""Maximum number of tokens of decoders with short contexts, prompt and answer together."""

Time = tuple[float, float]
"""Milliseconds: elapsed, and of the processor."""


class Loop:
    """A prompt and steps of one decoder in ONNX Runtime."""

    def __init__(self, prompt: Path, step: Path, *, threads: int) -> None:
        self._prompt, self._step = _session(prompt, threads), _session(step, threads)
        self._kept = [value.name for value in self._prompt.get_outputs()[1:]]
        (self._vocabulary,) = {value.shape[-1] for value in self._prompt.get_outputs()[:1]}
        self._random = np.random.default_rng(0)
        self.ids: list[int] = []
        """Tokens of the latest prompt and answer, but for the last."""

    def answer(self, prompt: int, new: int) -> list[Time]:
        """Return the time of every token."""
        ids = self._random.integers(0, self._vocabulary, (1, prompt))
        first, logits, kept = self._run(self._prompt, ids, prompt, {})
        times = [first]
        self.ids = ids[0].tolist()
        for length in range(prompt, prompt + new - 1):
            token = np.array([[int(logits[0, -1].argmax())]])
            past = dict(zip((name.replace("present", "past") for name in self._kept), kept, strict=True))
            step, logits, kept = self._run(self._step, token, length + 1, past)
            times.append(step)
            self.ids += token[0].tolist()
        return times

    def _run(self, session: Any, ids: Any, total: int, past: dict[str, Any]) -> tuple[Time, Any, list[Any]]:
        begun, cpu = time.perf_counter_ns(), time.process_time_ns()
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for name, value in past.items():
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", *self._kept):
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        taken = (time.perf_counter_ns() - begun) / 1e6, (time.process_time_ns() - cpu) / 1e6
        logits, *kept = binding.get_outputs()
        return taken, logits.numpy(), kept


def _session(path: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@dataclass
class Beside:
    """Answers of a loop, taken while bricks are measured: called between two requests to the worker.

    Attributes:
        loop: The generating loop.
        prompts: Lengths of the prompt, used in rotation.
        new: Tokens of each answer.
        times: Times of every token of every answer, by length of the prompt.
    """

    loop: Loop
    prompts: Sequence[int]
    new: int
    times: dict[int, list[list[Time]]] = field(default_factory=lambda: defaultdict(list))
    _next: float = 0.0
    _taken: int = 0

    def __call__(self, progress: Progress) -> None:
        """Generate an answer if the loop is due."""
        if str(progress.stage) == "sample" and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.one() * (1 / _SHARE - 1)

    def one(self) -> float:
        """Generate the next answer; the seconds it took."""
        begun = time.monotonic()
        prompt = self.prompts[self._taken % len(self.prompts)]
        self.times[prompt].append(self.loop.answer(prompt, self.new))
        self._taken += 1
        return time.monotonic() - begun


def main() -> None:
    """Predict, generate, compare, write."""
    options = _options()
    if os.environ.get(_PAGES) != "0":  # NumPy reads it when it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, _PAGES: "0"})
    target = options.out / "tokens.json"
    models = read(target, {"models": {}})["models"]
    with tempfile.TemporaryDirectory(prefix="dlbricks-tokens-") as folder:
        for name in options.models:
            models[", ".join((name, *_deployed(options)))] = _decoder(name, Path(folder), options)
            rows = [row for one in models.values() for row in one["answers"]]
            errors = {kind: _spread(row[f"{kind}_error"] for row in rows) for kind in _KINDS}
            result = {"schema": 1, "dlbricks": __version__, "models": models, "errors": errors}
            write(target, result, page(result), indent=None)


def _options() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", default=["gpt2", "opt_125m", "pythia_160m", "smollm_135m"])
    arguments.add_argument("--prompts", type=int, nargs="+", default=[32, 64, 128, 256, 512, 1024])
    arguments.add_argument("--new", type=int, default=32, help="tokens of each answer")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--visits", type=int, default=24, help="of each brick")
    arguments.add_argument("--rounds", type=int, default=3, help="answers to each prompt at least")
    arguments.add_argument(
        "--files", type=Path, help="folder of NAME_prompt.onnx and NAME_step.onnx, else written anew"
    )
    arguments.add_argument("--fuse-attention", action="store_true", help="attention as one operator")
    arguments.add_argument("--weights", choices=["int4", "int8"], help="how weights of products are stored")
    arguments.add_argument("--db", type=Path, help="keep the measurements")
    return arguments.parse_args()


def _deployed(options: argparse.Namespace) -> list[str]:
    """Return the changes to the exporter's file."""
    return [*(["attention"] if options.fuse_attention else []), *([options.weights] if options.weights else [])]


def _decoder(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return predicted and real times of one decoder."""
    print(name, flush=True)
    longest = _POSITIONS.get(name, max(options.prompts) + options.new) - options.new
    prompts = sorted({min(length, longest) for length in options.prompts})
    written = {
        part: (options.files or folder) / f"{'-'.join((f'{name}_{part}', *_deployed(options)))}.onnx"
        for part in ("prompt", "step")
    }
    files = [*written.values()]
    for part, file in written.items():
        if not file.exists():
            (source,) = find_models([f"{name}_{part}"])
            export_model(source, file, opened=True, attention=options.fuse_attention, weights=options.weights)
    prompt, step = pair([str(file) for file in files])
    with machine_lock():
        beside = Beside(Loop(*files, threads=options.threads), prompts, options.new)
        beside.loop.answer(max(prompts), options.new)
    with Store.open(options.db or folder / f"{name}.db") as store:
        found = tokens(
            prompt, step, store=store, prompts=prompts, new=options.new, visits=options.visits,
            setup=set_up(threads=options.threads), progress=beside,
        )  # fmt: skip
    with machine_lock():
        while any(len(beside.times[length]) < options.rounds for length in prompts):
            beside.one()
    if not found.complete:
        raise SystemExit(f"{name}: bricks are missing")
    return _beside(found, beside, options)


def _beside(predicted: Tokens, beside: Beside, options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for one, still in zip(predicted.rows, predicted.undisturbed, strict=True):
        times = beside.times[one.prompt]
        steps = [step for answer in times for step in answer[1:]]
        rows.append({
            **asdict(one),
            "rounds": len(times),
            "loop_ms": [[(round(elapsed, 3), round(cpu, 3)) for elapsed, cpu in answer] for answer in times],
            **_against("ttft", one.ttft_ms, still.ttft_ms, [answer[0] for answer in times]),
            **_against("token", one.token_ms, still.token_ms, steps),
        })  # fmt: skip
    parts = (predicted.prompt, predicted.step)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "onnxruntime": ort.__version__,
        "threads": options.threads,
        "visits": options.visits,
        "answers": rows,
        "disturbance": max((one.disturbance or 0.0) for part in parts for one in part.estimates.values()),
        "wall_s": predicted.wall_s,
    }


def _against(kind: str, ms: float, quiet_ms: float, times: Sequence[Time]) -> dict[str, float]:
    """Compare predicted and real times: means, and undisturbed times."""
    elapsed, cpu = zip(*times, strict=True)
    loop_ms, loop_quiet_ms = statistics.fmean(elapsed), float(np.quantile(cpu, _LOW))
    return {
        f"loop_{kind}_ms": loop_ms,
        f"{kind}_error": ms / loop_ms - 1,
        f"loop_{kind}_quiet_ms": loop_quiet_ms,
        f"{kind}_quiet_ms": quiet_ms,
        f"{kind}_quiet_error": quiet_ms / loop_quiet_ms - 1,
    }


def _spread(errors: Iterable[float]) -> dict[str, Any]:
    sizes = sorted(abs(error) for error in errors)
    return {
        "count": len(sizes),
        "median": statistics.median(sizes),
        "p90": float(np.quantile(sizes, 0.9)),
        "worst": sizes[-1],
    }


def page(result: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    rows = [
        [name, row["prompt"], *(number(row[part.format(kind)]) for kind in _KINDS for part in ("loop_{}_ms", "{}_ms"))]
        for name, one in result["models"].items()
        for row in one["answers"]
    ]
    titles = (f"{part}{kind.replace('_', ' ')}, ms" for kind in _KINDS for part in ("", "predicted "))
    errors = [
        [kind.replace("_", " "), spread["count"], *(percent(spread[name]) for name in ("median", "p90", "worst"))]
        for kind, spread in result["errors"].items()
    ]
    head = ("error", "lengths", "median", "90 % within", "worst")
    return table(("model", "prompt", *titles), rows) + table(head, errors)


if __name__ == "__main__":
    main()

"""What share of the layers of each class of files decomposes, and why the rest does not (docs/operators.md).

    python benchmarks/classes.py [--classes NAME ...]

Every file is decomposed at G=1; nothing is measured. Layers decompose where they are live or folded. Written into
``docs/results/classes.json``, where classes that were not asked for stay as they are; the page is then made by
``python benchmarks/operators.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import blocks
import onnx
import onnx.parser
from dlbricks.bricks.layer import LayerState
from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.custom_ops import register_custom_ops
from dlbricks.generator.decomposition.cutter import Cut, Cutter
from dlbricks.generator.decomposition.observation import observe
from dlbricks.generator.decomposition.oracle import WorkerOracle
from dlbricks.models import ModelSource, find_models

__all__ = ["CLASSES", "RESULT", "table"]

RESULT = Path("docs/results/classes.json")
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_VERSIONS = ("onnx", "onnxruntime", "onnxruntime-extensions", "transformers", "torch")

Found = tuple[str, Sequence[ModelSource]]
"""A graph that is cut, and files."""


def main() -> None:
    """Decompose, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=list(CLASSES), metavar="NAME")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the tools write to the root logger
    path = blocks.TOP / RESULT
    known = json.loads(path.read_text()) if path.exists() else {"classes": {}}
    for name in (one for one in CLASSES if one in options.classes):  # libraries of custom operators stay: they are last
        with tempfile.TemporaryDirectory(prefix="dlbricks-classes-") as place:
            known["classes"][name] = [_counted(*found) for found in CLASSES[name](Path(place))]
        print(name, json.dumps(known["classes"][name]), flush=True)
        known["versions"] = {package: metadata.version(package) for package in _VERSIONS}
        known["classes"] = {one: known["classes"][one] for one in CLASSES if one in known["classes"]}
        path.write_text(json.dumps(known, indent=1) + "\n")


def table(result: Mapping[str, Any]) -> str:
    """The table of the page."""
    lines = ["", "| class | graph | files | layers that decompose | | the others |", "|---|---|---:|---:|---:|---|"]
    for name, rows in result["classes"].items():
        for row in rows:
            done, layers = row["decomposed"], row["layers"]
            rest = Counter[str]()
            for reason, count in (*row["reasons"].items(), *row["unreadable"].items()):
                rest[re.sub("^(input|output) … ", "", reason)] += count
            lines.append(
                f"| {name} | `{row['graph']}` | {row['files']} | {done} of {layers} | {100 * done / layers:.1f} % "
                f"| {'; '.join(f'{count} x {reason}' for reason, count in rest.most_common())} |"
            )
    return "\n".join([*lines, ""])


def _counted(graph: str, sources: Sequence[ModelSource]) -> dict[str, Any]:
    """Layers by what became of them; files that cannot be decomposed at all, by reason."""
    layers = decomposed = 0
    reasons, unreadable = Counter[str](), Counter[str]()
    with WorkerOracle() as oracle, Cutter(Cut(1, graph=graph), oracle=oracle) as cutter:
        for source in sources:
            try:
                cut = cutter(source)
            except DlbricksError as error:
                told = str(error).replace(f"{source.path}", "…").replace(source.name, "…")
                unreadable[f"whole file: {_plain(told)}"] += 1
                continue
            layers += len(cut.graph.layers)
            skipped = [layer for layer in cut.graph.layers if layer.state is LayerState.SKIPPED]
            decomposed += len(cut.graph.layers) - len(skipped)
            reasons.update(_plain(layer.reason) for layer in skipped)
    return {
        "graph": graph, "files": len(sources), "layers": layers, "decomposed": decomposed,
        "reasons": dict(reasons.most_common()), "unreadable": dict(unreadable.most_common()),
    }  # fmt: skip


def _plain(reason: str) -> str:
    """A reason without the names that it is about, and without what would end a cell of the table."""
    text = re.sub(r"'[^']*'", "…", " ".join(reason.split()))
    return re.sub(r"\[[^\]]*\]", "[…]", text).replace("|", " ")[:160]


def _zoo(_: Path) -> Iterator[Found]:
    from dlbricks.models.zoo import names

    yield "source", find_models([entry.name for entry in names()])


def _node_tests(folder: Path) -> Iterator[Found]:
    yield "source", _written(folder, _cases())


def _wheel_files(_: Path) -> Iterator[Found]:
    folders = ("light", "simple", "pytorch-converted", "pytorch-operator")
    yield "source", find_models(sorted(path for name in folders for path in (_DATA / name).rglob("*.onnx")))


def _language_models(folder: Path) -> Iterator[Found]:
    """Prompts and steps of four families, two layers each, as they are exported and as they are deployed."""
    from dlbricks.generator.network.deployed import with_attention, with_weights
    from dlbricks.generator.network.network import export_open_network
    from dlbricks.models.zoo.exports import export
    from dlbricks.models.zoo.recipe import generator

    small = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes: dict[str, Any] = {**small, "intermediate_size": 256}
    grouped = {**sizes, "num_key_value_heads": 2, "tie_word_embeddings": True}
    recipes = [
        *generator("gpt2", "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_embd=128, n_head=4, vocab_size=1000),
        *generator("llama", "LlamaForCausalLM", "LlamaConfig", **sizes),
        *generator("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **grouped),
        *generator("smollm", "LlamaForCausalLM", "LlamaConfig", **grouped),
        *generator("pythia", "GPTNeoXForCausalLM", "GPTNeoXConfig", **sizes),
    ]  # fmt: skip
    forms: Mapping[str, Callable[[bytes], bytes]] = {
        "exported": bytes,
        "int4": lambda data: with_weights(data, "int4"),
        "int8": lambda data: with_weights(data, "int8"),
        "fused": with_attention,
        "fused-int4": lambda data: with_weights(with_attention(data), "int4"),
    }
    found = []
    for recipe in recipes:
        dims = dict(recipe.entry.dims)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = export_open_network(export(recipe, 1, dims, list(dims)), 0)
        for form, make in forms.items():
            path = folder / f"{recipe.entry.name}-{form}.onnx"
            try:
                path.write_bytes(make(plain))
            except DlbricksError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                continue
            found += find_models([path], dims=dims)
    yield "source", found
    yield "runtime", found


def _swept(_: Path) -> Iterator[Found]:
    """One model at many batches or lengths."""
    found: list[ModelSource] = []
    for name in ("squeezenet", "resnet50", "shufflenet"):
        found += find_models([name], batches=(1, 2, 4, 8, 16, 32))
    for name in ("bert_base", "gpt2"):
        for length in (16, 32, 64, 128, 256, 512):
            found += find_models([name], dims={"sequence_length": length})
    for size in (96, 160, 224, 288):
        found += find_models(["vit_b16"], dims={"image_size": size})
    yield "source", found


def _quantised(folder: Path) -> Iterator[Found]:
    import quantised

    found = [source for _, source in quantised.files(folder, ("squeezenet", "minilm_l6"), quantised.CLASSES)[0]]
    for graph in ("source", "fused", "runtime"):
        yield graph, found


def _control(folder: Path) -> Iterator[Found]:
    """Models whose course the file or one execution says."""
    import control

    models = folder / "models"
    models.mkdir()
    cases = [case for case in _cases() if any(node.op_type in {"If", "Loop", "Scan"} for node in case.model.graph.node)]
    tests = _written(folder / "nodes", cases)
    seen = zip(observe(tests), tests, strict=True)  # one that cannot be executed stays as it is
    yield "source", [*control.models(models), *(own if one.problem is not None else one for one, own in seen)]


_CUSTOM = (
    "g (float[8, 8] x) => (float[8, 8] y) {r = Relu(x) n, p = ai.onnx.contrib.NegPos(r) y = Add(n, p)}",
    "g (float[8, 8] x) => (float[8, 8] y) {a = Abs(x) i = ai.onnx.contrib.Inverse(a) y = MatMul(i, x)}",
    "g (string[4] x, string[4] z) => (bool[4] y) {e = ai.onnx.contrib.StringEqual(x, z) y = Not(e)}",
    "g (string[4] x) => (int64[4] y) {u = ai.onnx.contrib.StringUpper(x) y = ai.onnx.contrib.StringLength(u)}",
    "g (string[4] x) => (string[4] y) {u = ai.onnx.contrib.StringLower(x) y = Identity(u)}",
)


def _custom(folder: Path) -> Iterator[Found]:
    """Operators of onnxruntime-extensions."""
    import onnxruntime_extensions

    register_custom_ops(onnxruntime_extensions.get_library_path())
    head = '<ir_version: 9, opset_import: ["": 18, "ai.onnx.contrib": 1]>'
    for number, text in enumerate(_CUSTOM):
        onnx.save(onnx.parser.parse_model(f"{head}{text}"), folder / f"custom{number}.onnx")
    yield "source", find_models([folder])


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def _written(folder: Path, cases: Iterable[Any]) -> list[ModelSource]:
    folder.mkdir(exist_ok=True)
    for case in cases:
        (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())
    return find_models([folder])


CLASSES: Mapping[str, Callable[[Path], Iterator[Found]]] = {
    "the zoo": _zoo,
    "swept shapes": _swept,
    "language models": _language_models,
    "quantised and low-precision files": _quantised,
    "control flow": _control,
    "node tests of the onnx wheel": _node_tests,
    "other models of the onnx wheel": _wheel_files,
    "custom operators": _custom,
}
"""By what they are called in the table."""


if __name__ == "__main__":
    main()

"""Operators of quantised models that are computed in floating point, between conversions that are not folded.

If a runtime has an integer kernel for an operator's types, it folds the conversions around the operator into it
(DequantizeLinear before, QuantizeLinear after). Without a kernel all of them are executed, and quantising has made the
model slower. On x86, ONNX Runtime's kernels need unsigned activations.

Saving: the time of the unnecessary conversions. The gain of integer kernels is not predicted; only quantising again
shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ....bricks.layer import Layer
from ....bricks.operators import DEQUANTIZE, QUANTIZE, Trait, having
from ..analysed_model import AnalysedModel, Node
from ..finding import Analysis, Finding, Remedy, finding_of, spent_by

_KIND = "unfolded_quantization"
_CONVERSIONS = (QUANTIZE, DEQUANTIZE)
_REST = "Leave the operators around them out of quantisation (nodes_to_exclude): this runtime computes them in floats."
_BYTES = frozenset({"int8", "uint8"})
_SHOWN = 5


def _run(subject: AnalysedModel) -> Iterable[Finding]:
    """Values that are quantised and converted back at once, both executed: nothing computes with them."""
    layers, nodes = list[int](), list[Node]()
    around = Counter[str]()
    for index in subject.graph.live:
        layer = subject.graph.layers[index]
        if layer.op_type != QUANTIZE or layer.outputs[0] in subject.graph.outputs:
            continue
        back = subject.graph.consumers(layer.outputs[0])
        pair = subject.of({index, *back}, *_CONVERSIONS)
        executed = {origin for node in pair for origin in node.origins}
        if back and executed == {index, *back}:
            layers += [index, *back]
            nodes += pair
            around.update(_why(subject, layer))
    spent = subject.spent(nodes)
    if spent is None:
        return
    evidence = [f"executed, and no operator computes with what they make: {spent_by(nodes[:_SHOWN])}"]
    evidence += [f"{reason} ({count} times)" for reason, count in around.most_common(_SHOWN)]
    idea = Finding(
        _KIND,
        f"{len(layers)} conversions of quantised values that no operator takes in",
        Remedy("manual", _REST),
        tuple(evidence),
        subject.names(layers),
    )
    yield finding_of(subject, idea, spent, spent)


def _why(subject: AnalysedModel, quantise: Layer) -> Iterator[str]:
    """Why the operators around a quantised value do not compute with it, as far as that is known."""
    graph = subject.graph
    dtype = next((kind.dtype for kind in quantise.output_types if kind is not None), "")
    if dtype == "int8":
        yield "its activations are signed: on x86 this runtime has kernels for unsigned ones (QuantType.QUInt8)"
    if dtype not in _BYTES:
        yield f"this runtime has no kernels for activations of {dtype}"
        return
    maker = graph.producer(quantise.node.input[0])
    readers = {reader for back in graph.consumers(quantise.outputs[0]) for value in graph.layers[back].outputs
               for reader in graph.consumers(value)}  # fmt: skip
    for index in sorted({*readers, *([] if maker is None else [maker])}):
        layer = graph.layers[index]
        if layer.kind not in having(Trait.QUANTISABLE) and layer.op_type not in _CONVERSIONS:
            yield f"this runtime has no kernel for a quantised {layer.op_type}"
        elif any(_is_narrow(graph.layers[producer]) for value in layer.node.input
                 if (producer := graph.producer(value)) is not None):  # fmt: skip
            yield f"this runtime has no kernel for {layer.op_type} with weights of 4 bits and quantised activations"


def _is_narrow(layer: Layer) -> bool:
    """Return True if it converts weights of four bits."""
    kind = layer.operands[0].type if layer.op_type == DEQUANTIZE and layer.operands else None
    return kind is not None and kind.dtype in {"int4", "uint4"}


ANALYSIS = Analysis(_KIND, run=_run)

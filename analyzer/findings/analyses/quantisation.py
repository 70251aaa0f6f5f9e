"""Operators of quantised models that are computed in floating point, between conversions that are not folded.

If a runtime has an integer kernel for an operator's types, it folds the conversions around the operator into it
(DequantizeLinear before, QuantizeLinear after). Without a kernel all of them are executed, and quantising has made the
model slower. On x86, ONNX Runtime's kernels need unsigned activations.

Saving: the time of the unnecessary conversions. The gain of integer kernels is not predicted; only quantising again
shows it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....bricks.layer import Layer
from ....bricks.operators import DEQUANTIZE, QUANTIZE, Trait, having
from ..analysed_model import AnalysedModel, Node, Spent
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


# Kinds of quantised files whose kernels are known to be slow in ONNX Runtime on CPUs.
#
# ConvInteger, which dynamic quantisation makes, multiplies its weights from the left (conv_integer.cc), and the
# runtime's kernels for x86 are for an unsigned left operand (mlas/lib/qgemm.h, versions before 1.31; what multiplies
# a signed one in 1.31 was measured, not read). Version 1.31, one thread, six convolutions of ResNet-50, as multiples
# of Conv in float32: with signed weights ConvInteger takes 2.7 to 4.8 on an AMD EPYC with AVX2, with unsigned ones
# 0.6 to 1.2; five on a Xeon with AMX take 5.0 to 6.7. QLinearConv, which static quantisation makes, takes 0.45 to
# 0.63 with signed weights there, 0.27 to 0.50 on the Xeon. MatMulNBits of one row takes 2.1 to 2.9 times as long as
# with accuracy_level 4 on the Xeon, of 128 rows 0.8 to 0.9 times. Savings are predicted from the smallest factor.


_SLOWER_THAN_FLOAT = 2.66
"""Least time of ConvInteger with signed weights as a multiple of Conv in float32."""

_SLOWER_THAN_INT8 = 2.0
"""Least time of MatMulNBits of few rows as a multiple of its time with accuracy_level 4."""

_FEW_ROWS = 16
"""Rows of activations up to which MatMulNBits is bound by its weights."""

_AS_INT8 = 4
"""Value of accuracy_level that computes with activations in int8."""


def _is_ort_cpu(subject: AnalysedModel) -> bool:
    choice = subject.choice
    return choice is not None and (choice.stack.backend, choice.stack.device) == ("onnxruntime", "cpu")


def _dynamic_run(subject: AnalysedModel) -> Iterable[Finding]:
    """Convolutions that were quantised dynamically, with signed weights."""
    nodes = [node for node in subject.nodes if node.layer.op_type == "ConvInteger" and _has_signed_weights(node.layer)]
    text = (
        "Quantise statically, with calibration data and the QDQ format (onnxruntime.quantization.quantize_static), "
        "dynamically with weight_type=QuantType.QUInt8, or leave convolutions in float32 "
        "(op_types_to_quantize=['MatMul'])."
    )
    evidence = (
        f"ConvInteger is slow with signed weights: it takes {_SLOWER_THAN_FLOAT:.1f} to 7 times as long as in float32, "
        "with unsigned ones 0.6 to 1.2 times, and QLinearConv of a static model 0.3 to 0.6 times "
        "(other convolutions, on an AMD EPYC and a Xeon)"
    )
    title = f"{len(nodes)} convolutions are quantised dynamically, with signed weights, which is slower than float32"
    yield from _saved(subject, Finding("dynamic_convolution", title, Remedy("manual", text), (evidence,)), nodes,
                      1 - 1 / _SLOWER_THAN_FLOAT)  # fmt: skip


def _accuracy_run(subject: AnalysedModel) -> Iterable[Finding]:
    """Products with weights of four bits and few rows that compute in float32."""
    nodes = [node for node in subject.nodes if node.layer.op_type == "MatMulNBits" and _computes_in_float(node.layer)]
    text = "Quantise with accuracy_level=4, where the accuracy allows it: activations are then quantised to int8."
    evidence = f"with accuracy_level 4, products of at most {_FEW_ROWS} rows take a third to a half of the time"
    title = f"{len(nodes)} products with weights of 4 bits compute in float32"
    yield from _saved(subject, Finding("accuracy_level", title, Remedy("manual", text), (evidence,)), nodes,
                      1 - 1 / _SLOWER_THAN_INT8)  # fmt: skip


def _saved(subject: AnalysedModel, idea: Finding, nodes: list[Node], share: float) -> Iterator[Finding]:
    """Yield an idea that saves a known share of the time of some operators."""
    spent = subject.spent(nodes) if _is_ort_cpu(subject) else None
    if spent is not None:
        layers = subject.names(index for node in nodes for index in node.origins)
        idea = replace(idea, layers=layers, evidence=(*idea.evidence, spent_by(nodes[:_SHOWN])))
        yield finding_of(subject, idea, spent, Spent(share * spent.ms, share * spent.half_ms, spent.keys))


def _has_signed_weights(layer: Layer) -> bool:
    kind = layer.operands[1].type
    return kind is not None and kind.dtype == "int8"


def _computes_in_float(layer: Layer) -> bool:
    """Return True for MatMulNBits without accuracy_level 4 of few rows."""
    level = next((attribute.i for attribute in layer.node.attribute if attribute.name == "accuracy_level"), 0)
    kind = layer.operands[0].type
    return level != _AS_INT8 and kind is not None and math.prod(kind.shape[:-1]) <= _FEW_ROWS


DYNAMIC_CONVOLUTIONS = Analysis("dynamic_convolution", run=_dynamic_run)
ACCURACY_LEVEL = Analysis("accuracy_level", run=_accuracy_run)

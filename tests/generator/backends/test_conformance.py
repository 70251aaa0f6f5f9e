"""Every backend that is available computes what ONNX says, on legal seeded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from dlbricks.bricks.reference import CHAIN, OVERHEAD, built_in
from dlbricks.errors import BackendError, UnsupportedBrick, UsageError
from dlbricks.generator.backends.base import MADE_OF, WORKER_COMMAND, Backend, Settings
from dlbricks.generator.backends.registry import get, names
from dlbricks.generator.backends.torch.backend import allow_tf32
from dlbricks.generator.network.network import Network, synthetic_network
from onnx.reference import ReferenceEvaluator

CASES = {
    "conv": "(float[1,8,14,14] x0, float[16,8,3,3] w0, float[16] w1) => (float[1,16,14,14] v0)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0, w1)}",
    "conv-bn-relu": "(float[1,4,9,9] x0, float[16,4,1,1] w0, float[16] w1, float[16] w2, float[16] w3, float[16] w4)"
    " => (float[1,16,9,9] v2) {v0 = Conv(x0, w0) v1 = BatchNormalization(v0, w1, w2, w3, w4) v2 = Relu(v1)}",
    "depthwise": "(float[1,8,10,10] x0, float[8,1,3,3] w0) => (float[1,8,5,5] v0)"
    "{v0 = Conv<group=8, pads=[1,1,1,1], strides=[2,2]>(x0, w0)}",
    "conv-transpose": "(float[1,4,5,5] x0, float[4,3,2,2] w0) => (float[1,3,10,10] v0)"
    "{v0 = ConvTranspose<strides=[2,2]>(x0, w0)}",
    "gemm": "(float[3,40] x0, float[40,24] w0, float[24] w1) => (float[3,24] v0) {v0 = Gemm(x0, w0, w1)}",
    "matmul-double": "(double[2,3,4] x0, double[4,5] w0) => (double[2,3,5] v0) {v0 = MatMul(x0, w0)}",
    "matmul-half": "(float16[2,3,4] x0, float16[4,5] w0) => (float16[2,3,5] v0) {v0 = MatMul(x0, w0)}",
    "square-of-itself": "(float[2,3] x0) => (float[2,3] v0) {v0 = Mul(x0, x0)}",
    "pool": "(float[1,4,8,8] x0) => (float[1,4,4,4] v0, float[1,4,1,1] v1)"
    "{v0 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x0) v1 = GlobalAveragePool(x0)}",
    "lrn-dropout": "(float[1,8,5,5] x0) => (float[1,8,5,5] v1) {v0 = LRN<size=5>(x0) v1 = Dropout(v0)}",
    "softmax": "(float[2,5] x0) => (float[2,5] v0) {v0 = Softmax(x0)}",
    "layernorm": "(float[2,6,16] x0, float[16] w0, float[16] w1) => (float[2,6,16] v0)"
    "{v0 = LayerNormalization(x0, w0, w1)}",
    "layernorm-tail": "(float[2,1] x0, float[2,8] x1) => (float[2,8] v2)"
    "<float[1] c0 = {0.00001}> {v0 = Add(x0, c0) v1 = Sqrt(v0) v2 = Div(x1, v1)}",
    "attention": "(float[1,4,8] x0, float[1,8,4] x1, float[1,4,8] x2) => (float[1,4,8] v2)"
    "{v0 = MatMul(x0, x1) v1 = Softmax(v0) v2 = MatMul(v1, x2)}",
    "elementwise": "(float[3,4] x0) => (float[3,4] v4)"
    "{v0 = Sigmoid(x0) v1 = Tanh(v0) v2 = Erf(v1) v3 = Exp(v2) v4 = Neg(v3)}",
    "root-of-negative": "(float[50] x0, float[50] x1, float[50] x2) => (float[50] v0, float[50] v1, float[50] v2)"
    "{v0 = Sqrt(x0) v1 = Log(x1) v2 = Reciprocal(x2)}",
    "mask": "(float[40] x0) => (float[40] v0) <float c0 = {-3.4e38}> {v0 = Mul(x0, c0)}",
    "power": "(float[9] x0, float[9] x1) => (float[9] v0) {v0 = Pow(x0, x1)}",
    "arcs": "(float[9] x0, float[9] x1, float[9] x2) => (float[9] v0, float[9] v1, float[9] v2)"
    "{v0 = Acos(x0) v1 = Atanh(x1) v2 = Acosh(x2)}",
    "integer-division": "(int64[20] x0, int64[20] x1) => (int64[20] v0, int64[20] v1)"
    "{v0 = Div(x0, x1) v1 = Mod(x0, x1)}",
    "embedding": "(int64[1,7] x0, float[11,6] w0) => (float[1,7,6] v0) {v0 = Gather(w0, x0)}",
    "embedding-through-cast": "(int32[7] x0, float[3,6] w0) => (float[1,7,6] v2)"
    "<int64[1] c0 = {0}> {v0 = Cast<to=7>(x0) v1 = Unsqueeze(v0, c0) v2 = Gather(w0, v1)}",
    "gather-elements": "(float[4,5] x0, int64[4,2] x1) => (float[4,2] v0) {v0 = GatherElements<axis=1>(x0, x1)}",
    "gather-nd": "(float[4,2,5] x0, int64[3,2] x1) => (float[3,5] v0) {v0 = GatherND(x0, x1)}",
    "scatter-nd": "(float[6,3] x0, int64[1,1] x1, float[1,3] x2) => (float[6,3] v0) {v0 = ScatterND(x0, x1, x2)}",
    "one-hot": "(int64[4] x0, int64 x1, float[2] x2) => (float[4,6] v0) {v0 = OneHot(x0, x1, x2)}",
    "where": "(bool[4,4] x0, float[4,4] x1, float[4,4] x2) => (float[4,4] v0) {v0 = Where(x0, x1, x2)}",
    "logic": "(bool[5] x0, bool[5] x1) => (bool[5] v1) {v0 = And(x0, x1) v1 = Not(v0)}",
    "reshape": "(float[2,6] x0, int64[2] x1) => (float[3,4] v0) {v0 = Reshape(x0, x1)}",
    "reshape-of-parts": "(float[2,6] x0, int64[1] x1, int64[1] x2) => (float[3,4] v1)"
    "{v0 = Concat<axis=0>(x1, x2) v1 = Reshape(x0, v0)}",
    "expand": "(float[2,1] x0, int64[2] x1) => (float[2,5] v0) {v0 = Expand(x0, x1)}",
    "expand-by-few": "(float[1,3,1] x0, int64[2] x1) => (float[1,3,1] v0) {v0 = Expand(x0, x1)}",
    "tile": "(float[2,3] x0, int64[2] x1) => (float[4,9] v0) {v0 = Tile(x0, x1)}",
    "slice": "(float[6,8] x0, int64[2] x1, int64[2] x2) => (float[4,3] v0) {v0 = Slice(x0, x1, x2)}",
    "slice-axes": "(float[6,8] x0, int64[1] x1, int64[1] x2) => (float[6,3] v0)"
    "<int64[1] c0 = {1}> {v0 = Slice(x0, x1, x2, c0)}",
    "pad": "(float[2,3] x0, int64[4] x1) => (float[3,5] v0) {v0 = Pad(x0, x1)}",
    "split": "(float[6,2] x0, int64[2] x1) => (float[4,2] v0, float[2,2] v1) {v0, v1 = Split(x0, x1)}",
    "squeeze": "(float[1,3,1] x0, int64[1] x1, int64[1] x2) => (float[3,1] v0, float[1,1,3,1] v1)"
    "{v0 = Squeeze(x0, x1) v1 = Unsqueeze(x0, x2)}",
    "reduce": "(float[2,3,4] x0, int64[1] x1, int64[2] x2) => (float[2,1,4] v0, float[3] v1)"
    "{v0 = ReduceMean(x0, x1) v1 = ReduceSum<keepdims=0>(x0, x2)}",
    "top-k": "(float[3,9] x0, int64[1] x1) => (float[3,4] v0, int64[3,4] v1) {v0, v1 = TopK(x0, x1)}",
    "range": "(int64 x0, int64 x1, int64 x2) => (int64[6] v0) {v0 = Range(x0, x1, x2)}",
    "constant-of-shape": "(int64[2] x0) => (float[3,2] v0) {v0 = ConstantOfShape(x0)}",
    "cumulative": "(float[5,3] x0, int64 x1) => (float[5,3] v0) {v0 = CumSum(x0, x1)}",
    "clip": "(float[9] x0, float x1, float x2) => (float[9] v0) {v0 = Clip(x0, x1, x2)}",
    "trilu": "(float[4,4] x0, int64 x1) => (float[4,4] v0) {v0 = Trilu(x0, x1)}",
    "resize": "(float[1,2,4,4] x0, int64[4] x1) => (float[1,2,8,8] v0) {v0 = Resize<mode=\"nearest\">(x0, , , x1)}",
    "grid-sample": "(float[1,2,5,5] x0, float[1,3,3,2] x1) => (float[1,2,3,3] v0) {v0 = GridSample(x0, x1)}",
    "lstm": "(float[5,2,3] x0, float[1,16,3] w0, float[1,16,4] w1, float[1,32] w2, int32[2] x1)"
    " => (float[5,1,2,4] v0) {v0 = LSTM<hidden_size=4>(x0, w0, w1, w2, x1)}",
    "quantise": "(float[4,4] x0, float x1, uint8 x2) => (float[4,4] v1)"
    "{v0 = QuantizeLinear(x0, x1, x2) v1 = DequantizeLinear(v0, x1, x2)}",
    "matmul-integer": "(uint8[3,8] x0, int8[8,5] w0) => (int32[3,5] v0) {v0 = MatMulInteger(x0, w0)}",
    "bfloat16": "(bfloat16[70] x0, float[70] x1) => (float[70] v0, bfloat16[70] v1)"
    "{v0 = Cast<to=1>(x0) v1 = Cast<to=16>(x1)}",
    "bfloat16-weight": "(int64[5] x0, bfloat16[90,9] w0) => (float[5,9] v1) {v0 = Gather(w0, x0) v1 = Cast<to=1>(v0)}",
    "int4-weight": "(float[5,64] x0, int4[64,64] w0, float[64] w1) => (float[5,64] v1)"
    "{v0 = DequantizeLinear(w0, w1) v1 = MatMul(x0, v0)}",
    "float8": "(float8e4m3fn[64] x0, float x1) => (float[64] v0) {v0 = DequantizeLinear(x0, x1)}",
    "transpose": "(float[2,3,4] x0) => (float[4,2,3] v0) {v0 = Transpose<perm=[2,0,1]>(x0)}",
    "narrow-types": "(int8[300] x0, uint16[30] x1) => (float[300] v0, int32[30] v1)"
    "{v0 = Cast<to=1>(x0) v1 = Cast<to=6>(x1)}",
    "strings": "(string[4] x0) => (string[4] v0) {v0 = Identity(x0)}",
    "branch": "(bool x0, float[3] x1) => (float[3] v0)"
    "{v0 = If<then_branch = t () => (float[3] a) {a = Neg(x1)}, else_branch = e () => (float[3] b) {b = Abs(x1)}>(x0)}",
    "loop": "(int64 x0, bool x1, float[3] x2, float[3] x3) => (float[3] v0)"
    "{v0 = Loop<body = l (int64 i, bool c, float[3] s) => (bool d, float[3] t) {d = Identity(c) t = Add(s, x3)}>"
    "(x0, x1, x2)}",
    "two-outputs-one-exposed-inside": "(float[4,4] x0, float[4,4] w0) => (float[4,4] v0, float[4,4] v1)"
    "{v0 = MatMul(x0, w0) v1 = Relu(v0)}",
    "weights-alone": "(float[64,64] w0, float[4] x0) => (float[64,64] v0, float[4] v1)"
    "{v0 = Relu(w0) v1 = Relu(x0)}",
    "arithmetic": "(float[3,4] x0, float[4] x1) => (float[3,4] v1, float[3,4] v2, float[3,4] v3, float[3,4] v4)"
    "{v0 = Sub(x0, x1) v1 = Abs(v0) v2 = Sum(x0, x1, v0) v3 = Max(x0, x1) v4 = Min(x0, x1, v0)}",
    "mean-of-tensors": "(float[3,4] x0, float[4] x1) => (float[3,4] v0) {v0 = Mean(x0, x1)}",
    "rounding": "(float[50] x0) => (float[50] v0, float[50] v1, float[50] v2, float[50] v3)"
    "{v0 = Ceil(x0) v1 = Floor(x0) v2 = Round(x0) v3 = Sign(x0)}",
    "trigonometry": "(float[50] x0) => (float[50] v0, float[50] v1, float[50] v2, float[50] v3)"
    "{v0 = Sin(x0) v1 = Cos(x0) v2 = Atan(x0) v3 = Sinh(x0)}",
    "comparison": "(float[9] x0, float[9] x1) => (bool[9] v0, bool[9] v1, bool[9] v2, bool[9] v3, bool[9] v4)"
    "{v0 = Less(x0, x1) v1 = LessOrEqual(x0, x1) v2 = Greater(x0, x1) v3 = GreaterOrEqual(x0, x1)"
    " v4 = Equal(x0, x1)}",
    "disjunction": "(bool[9] x0, bool[9] x1) => (bool[9] v0, bool[9] v1) {v0 = Or(x0, x1) v1 = Xor(x0, x1)}",
    "hard-activations": "(float[50] x0) => (float[50] v0, float[50] v1, float[50] v2)"
    "{v0 = HardSwish(x0) v1 = HardSigmoid(x0) v2 = LeakyRelu<alpha=0.2>(x0)}",
    "soft-activations": "(float[50] x0) => (float[50] v0, float[50] v1, float[50] v2, float[50] v3)"
    "{v0 = Elu(x0) v1 = Selu(x0) v2 = Softplus(x0) v3 = Softsign(x0)}",
    "gelu": "(float[50] x0) => (float[50] v0, float[50] v1) {v0 = Gelu(x0) v1 = Gelu<approximate=\"tanh\">(x0)}",
    "mish": "(float[50] x0) => (float[50] v0) {v0 = Mish(x0)}",
    "prelu": "(float[1,4,5,5] x0, float[4,1,1] w0) => (float[1,4,5,5] v0) {v0 = PRelu(x0, w0)}",
    "log-softmax": "(float[3,5,4] x0) => (float[3,5,4] v0) {v0 = LogSoftmax<axis=1>(x0)}",
    "numbers-that-are-none": "(float[9] x0) => (bool[9] v0, bool[9] v1) {v0 = IsNaN(x0) v1 = IsInf(x0)}",
    "average-pool": "(float[1,4,9,9] x0) => (float[1,4,5,5] v0, float[1,4,9,9] v1)"
    "{v0 = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x0)"
    " v1 = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x0)}",
    "uneven-pools": "(float[1,4,8,8] x0) => (float[1,4,4,4] v0, float[1,4,4,4] v1)"
    "{v0 = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x0)"
    " v1 = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x0)}",
    "pool-up": "(float[1,4,8,8] x0) => (float[1,4,4,4] v0)"
    "{v0 = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x0)}",
    "global-max-pool": "(float[2,4,5,5] x0) => (float[2,4,1,1] v0) {v0 = GlobalMaxPool(x0)}",
    "uneven-conv": "(float[1,4,9,9] x0, float[6,4,3,3] w0) => (float[1,6,9,9] v0)"
    "{v0 = Conv<auto_pad=\"SAME_LOWER\">(x0, w0)}",
    "dilated-conv": "(float[1,4,9,9] x0, float[6,2,3,3] w0) => (float[1,6,5,5] v0)"
    "{v0 = Conv<dilations=[2,2], group=2>(x0, w0)}",
    "conv-of-a-line": "(float[2,4,20] x0, float[6,4,5] w0, float[6] w1) => (float[2,6,8] v0)"
    "{v0 = Conv<strides=[2]>(x0, w0, w1)}",
    "conv-of-a-volume": "(float[1,2,5,6,7] x0, float[3,2,2,2,2] w0) => (float[1,3,4,5,6] v0) {v0 = Conv(x0, w0)}",
    "linear": "(float[3,40] x0, float[24,40] w0, float[24] w1) => (float[3,24] v0)"
    "{v0 = Gemm<transB=1>(x0, w0, w1)}",
    "scaled-gemm": "(float[40,3] x0, float[40,24] w0, float[3,24] x1) => (float[3,24] v0)"
    "{v0 = Gemm<transA=1, alpha=0.5, beta=2.0>(x0, w0, x1)}",
    "einsum": "(float[2,3,4] x0, float[2,5,4] x1) => (float[2,3,5] v0)"
    "{v0 = Einsum<equation=\"bij,bkj->bik\">(x0, x1)}",
    "instance-norm": "(float[2,4,5,5] x0, float[4] w0, float[4] w1) => (float[2,4,5,5] v0)"
    "{v0 = InstanceNormalization(x0, w0, w1)}",
    "group-norm": "(float[2,4,5,5] x0, float[4] w0, float[4] w1) => (float[2,4,5,5] v0)"
    "{v0 = GroupNormalization<num_groups=2>(x0, w0, w1)}",
    "layernorm-of-two-axes": "(float[2,6,16] x0, float[6,16] w0) => (float[2,6,16] v0)"
    "{v0 = LayerNormalization<axis=1>(x0, w0)}",
    "unit-length": "(float[3,8] x0) => (float[3,8] v0) {v0 = LpNormalization<axis=1>(x0)}",
    "extremes": "(float[3,4] x0, int64[1] x1) => (float[3,1] v0, float[3,1] v1, float[3,1] v2)"
    "{v0 = ReduceMax(x0, x1) v1 = ReduceMin(x0, x1) v2 = ReduceProd(x0, x1)}",
    "norms": "(float[3,4] x0, int64[1] x1) => (float[3,1] v0, float[3,1] v1, float[3,1] v2, float[3,1] v3)"
    "{v0 = ReduceL2(x0, x1) v1 = ReduceL1(x0, x1) v2 = ReduceSumSquare(x0, x1) v3 = ReduceLogSumExp(x0, x1)}",
    "sum-of-integers": "(int64[3,4] x0) => (int64[1,1] v0) {v0 = ReduceSum(x0)}",
    "arg-max": "(float[3,9] x0) => (int64[3,1] v0, int64[9] v1)"
    "{v0 = ArgMax<axis=1>(x0) v1 = ArgMin<axis=0, keepdims=0>(x0)}",
    "flatten": "(float[2,3,4] x0) => (float[6,4] v0) {v0 = Flatten<axis=2>(x0)}",
    "blocks": "(float[1,8,4,4] x0) => (float[1,2,8,8] v0, float[1,32,2,2] v1)"
    "{v0 = DepthToSpace<blocksize=2>(x0) v1 = SpaceToDepth<blocksize=2>(x0)}",
    "columns": "(float[1,12,9] x0) => (float[1,3,4,4] v0)"
    "<int64[2] c0 = {4, 4}, int64[2] c1 = {2, 2}> {v0 = Col2Im(x0, c0, c1)}",
    "mirrored": "(float[1,2,5,5] x0) => (float[1,2,7,8] v0)"
    "<int64[8] c0 = {0, 0, 1, 2, 0, 0, 1, 1}> {v0 = Pad<mode=\"reflect\">(x0, c0)}",
    "edges": "(float[4,5] x0) => (float[6,6] v0) <int64[4] c0 = {1, 0, 1, 1}> {v0 = Pad<mode=\"edge\">(x0, c0)}",
    "backwards": "(float[6,8] x0) => (float[3,8] v0)"
    "<int64[1] c0 = {-1}, int64[1] c1 = {-9}, int64[1] c2 = {0}, int64[1] c3 = {-2}> {v0 = Slice(x0, c0, c1, c2, c3)}",
    "split-evenly": "(float[7,2] x0) => (float[3,2] v0, float[3,2] v1, float[1,2] v2)"
    "{v0, v1, v2 = Split<num_outputs=3>(x0)}",
    "gather-from-the-end": "(float[4,5] x0) => (float[4,2] v0, float[5] v1)"
    "<int64[2] c0 = {-1, 0}, int64 c1 = {-2}> {v0 = Gather<axis=1>(x0, c0) v1 = Gather(x0, c1)}",
    "gather-nd-batched": "(float[4,3,5] x0, int64[4,1] x1) => (float[4,5] v0)"
    "{v0 = GatherND<batch_dims=1>(x0, x1)}",
    "scatter-elements": "(float[4,5] x0, float[2,5] x1) => (float[4,5] v0, float[4,5] v1)"
    "<int64[2,5] c0 = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1}>"
    "{v0 = ScatterElements(x0, c0, x1) v1 = ScatterElements<reduction=\"add\">(x0, c0, x1)}",
    "scatter-nd-reduced": "(float[4,3] x0, float[2,3] x1) => (float[4,3] v0, float[4,3] v1)"
    "<int64[2,1] c0 = {1, 3}>"
    "{v0 = ScatterND<reduction=\"add\">(x0, c0, x1) v1 = ScatterND<reduction=\"max\">(x0, c0, x1)}",
    "cumulative-backwards": "(float[5,3] x0) => (float[5,3] v0)"
    "<int64 c0 = {0}> {v0 = CumSum<exclusive=1, reverse=1>(x0, c0)}",
    "resize-linear": "(float[1,2,4,4] x0) => (float[1,2,7,9] v0, float[1,2,7,9] v1)"
    "<int64[4] c0 = {1, 2, 7, 9}> {v0 = Resize<mode=\"linear\">(x0, , , c0)"
    " v1 = Resize<mode=\"linear\", coordinate_transformation_mode=\"align_corners\">(x0, , , c0)}",
    "resize-by-scales": "(float[1,2,4,4] x0) => (float[1,2,8,8] v0, float[1,2,8,8] v1)"
    "<float[4] c0 = {1, 1, 2, 2}> {v0 = Resize<mode=\"nearest\", nearest_mode=\"floor\","
    " coordinate_transformation_mode=\"asymmetric\">(x0, , c0)"
    " v1 = Resize<mode=\"cubic\", coordinate_transformation_mode=\"asymmetric\">(x0, , c0)}",
    "eye": "(float[4,4] x0) => (float[4,4] v0) {v0 = EyeLike<k=1>(x0)}",
    "shape": "(float[2,3,4] x0) => (int64[3] v0, int64 v1, float[2,3,4] v2)"
    "{v0 = Shape(x0) v1 = Size(x0) v2 = Neg(x0)}",
    "quantise-per-channel": "(float[4,6] x0, float[4] w0) => (float[4,6] v1)"
    "<int8[4] c0 = {0, 1, 2, 3}> {v0 = QuantizeLinear<axis=0>(x0, w0, c0) v1 = DequantizeLinear<axis=0>(v0, w0, c0)}",
    "gru": "(float[5,2,3] x0, float[1,12,3] w0, float[1,12,4] w1, float[1,24] w2) => (float[5,1,2,4] v0)"
    "{v0 = GRU<hidden_size=4, linear_before_reset=1>(x0, w0, w1, w2)}",
    "empty-attribute": "(float[2,3] x0) => (float[2,3] v0) <int64[0] c0 = {}>"
    "{v0 = ReduceSum<noop_with_empty_axes=1>(x0, c0)}",
}  # fmt: skip

MAY_REFUSE = {
    "onnxruntime": frozenset(),
    "openvino": frozenset({  # the last three it would compute in single precision
        "strings", "squeeze", "reduce", "matmul-double", "matmul-half", "bfloat16-weight",
    }),
    "torch": frozenset({"strings"}),
}  # fmt: skip
"""Cases that a backend calls unsupported, and no others; of backends that are not listed, any but ``CORE`` may be."""

CORE = frozenset({
    "conv", "conv-bn-relu", "depthwise", "gemm", "pool", "average-pool", "softmax", "elementwise", "arithmetic",
    "square-of-itself", "transpose", "split", "linear", "flatten",
})  # fmt: skip
"""Cases that no backend may call unsupported."""

TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2}
BY_CASE = {"int4-weight": 0.1}
"""ONNX Runtime multiplies weights of 4 bits with activations of 8."""


ON_CPU = [name for name in names() if "cpu" in get(name).devices]


@pytest.fixture(params=ON_CPU, scope="module")
def backend(request):
    """Every backend that can run here."""
    found = get(request.param)
    availability = found.probe()
    if not availability.ok:
        pytest.skip(availability.reason)
    if tuple(found.command()) != WORKER_COMMAND:
        pytest.skip(f"{found.name} runs in another environment: its own tests hold it to the same cases")
    return found


def able(method: Callable[..., Any]) -> list[str]:
    """Names of the backends for CPUs that have an optional method of their own."""
    return [name for name in ON_CPU if get(name).offers(method)]


def settings(backend: Backend, **options: str) -> Settings:
    """The test process itself must not be bound to a core."""
    device = backend.devices[0]
    given = {"pinning": "off", **options}
    return Settings(device, 1, backend.resolve(device, given))


def execute(backend: Backend, network: Network, **options: str) -> list[np.ndarray]:
    """Outputs of one network."""
    executable = backend.prepare(network, settings(backend, **options))
    for _ in range(3):  # outputs are bound after the first run: later runs must write the same
        executable.run()
    executable.synchronize()
    outputs = executable.outputs()
    executable.close()
    return outputs


@contextmanager
def skipping_refusals(backend: Backend, case: str) -> Iterator[None]:
    """What a backend cannot express is skipped with its reason, but for what it must be able to."""
    try:
        yield
    except UnsupportedBrick as error:
        if case not in MAY_REFUSE.get(backend.name, frozenset(CASES) - CORE):
            raise
        pytest.skip(str(error))
    assert case not in MAY_REFUSE.get(backend.name, frozenset()), "it is no longer refused"


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float | None = None) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        if one.dtype.kind in "OUS":
            assert one.tolist() == other.tolist()
            continue
        limit = tolerance or TOLERANCE.get(str(one.dtype), 1e-3)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=limit, atol=limit)


@pytest.mark.sweep(60, by="backend")
@pytest.mark.parametrize("case", CASES)
def test_a_brick_computes_what_onnx_says(backend, case, skeleton_of):
    network = synthetic_network(skeleton_of(CASES[case]), seed=3)

    with skipping_refusals(backend, case):
        found = execute(backend, network)

    expected = ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))
    assert_close(found, [np.asarray(value) for value in expected], BY_CASE.get(case))
    for array in (array for array in found if array.dtype.kind == "f"):
        assert np.isfinite(array).all()


@pytest.mark.sweep(20, by="backend")
@pytest.mark.parametrize("case", CASES)
def test_a_copy_computes_what_the_brick_does(backend, case, skeleton_of):
    model = skeleton_of(CASES[case])
    alone, unrolled = synthetic_network(model), synthetic_network(model, unroll=3)

    with skipping_refusals(backend, case):
        found = execute(backend, unrolled)

    expected = execute(backend, alone)
    assert len(found) == 3 * len(expected)
    assert_close(list(unrolled.first_outputs(found).values()), expected)


@pytest.mark.sweep(20, by="backend")
@pytest.mark.parametrize("backend", able(Backend.fused_graph), indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_what_a_backend_fuses_is_reported_by_the_network_s_own_values(backend, case, skeleton_of):
    """Every node is in order, and made of values that the network has; they make up a graph that can be decomposed."""
    network = synthetic_network(skeleton_of(CASES[case]))

    with skipping_refusals(backend, case):
        fused = backend.fused_graph(network, settings(backend))

    nodes, known = fused.model.graph.node, {value for node in network.model.graph.node for value in node.output}
    made_of = [
        {value.decode() for one in node.attribute if one.name == MADE_OF for value in one.strings} for node in nodes
    ]
    assert set().union(*made_of) <= known
    assert all(any(one.name == MADE_OF for one in node.attribute) for node in nodes)
    ready = {*network.feeds} | {tensor.name for tensor in fused.model.graph.initializer}
    for node in nodes:
        assert ready.issuperset(filter(None, node.input))
        ready.update(node.output)
        assert node.domain


@pytest.mark.parametrize("backend", able(Backend.prepare_streamed), indirect=True)
def test_bricks_of_a_pass_compute_what_each_does_alone(backend, skeleton_of):
    """They may share memory, and their inputs are written anew before each."""
    chosen = settings(backend)
    networks = {case: synthetic_network(skeleton_of(CASES[case]), seed=3) for case in sorted(CORE)}
    bricks = {
        (case, copy): backend.prepare_streamed(network, chosen)
        for case, network in networks.items()
        for copy in range(2)
    }
    for _ in range(2):
        for brick in bricks.values():
            brick.keeps = True  # PyTorch keeps no outputs in a pass
            brick.refresh()
            brick.run()
            brick.synchronize()

    for (case, _), brick in bricks.items():
        brick.refresh()
        brick.run()
        found = brick.outputs()
        expected = ReferenceEvaluator(networks[case].self_contained()).run(None, dict(networks[case].feeds))
        assert_close(found, [np.asarray(value) for value in expected])
        brick.close()


@pytest.mark.parametrize("name", [CHAIN, OVERHEAD])
def test_the_built_in_networks_run(backend, name):
    network = synthetic_network(built_in(name))

    found = execute(backend, network)

    assert_close(found, ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds)))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_computes_what_onnx_says(case, skeleton_of):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    backend = get("torch")
    allow_tf32(allowed=False)
    network = synthetic_network(skeleton_of(CASES[case]), seed=3)
    options = backend.resolve("cuda", {"pinning": "off"})

    with skipping_refusals(backend, case):
        executable = backend.prepare(network, Settings("cuda", 1, options))
        executable.run()
        executable.synchronize()
        found = executable.outputs()

    expected = ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))
    assert_close(found, [np.asarray(value) for value in expected], BY_CASE.get(case))


def test_an_operator_that_no_runtime_knows_is_unsupported(backend, skeleton_of):
    model = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.NoSuchOperator(x0)}", domains=', "nowhere": 1')

    with pytest.raises(UnsupportedBrick, match=r"NoSuchOperator|nowhere"):
        execute(backend, synthetic_network(model))


def test_an_illegal_execution_is_an_error_in_one_line(backend, skeleton_of):
    network = synthetic_network(skeleton_of(CASES["embedding"]))
    network.feeds["x0"][:] = 1000

    with pytest.raises(BackendError) as caught:
        execute(backend, network)

    assert "\n" not in str(caught.value)
    assert "Gather" in str(caught.value)


def test_a_released_network_cannot_run(backend, skeleton_of):
    executable = backend.prepare(synthetic_network(skeleton_of(CASES["gemm"])), settings(backend))

    executable.close()

    with pytest.raises(BackendError, match="released"):
        executable.run()


def test_the_stack_reports_every_option_and_a_version_and_what_is_wrong_is_refused(backend, monkeypatch):
    stack = backend.stack(backend.devices[0], {})

    assert dict(stack.options) == backend.resolve(backend.devices[0], {})
    assert list(stack.options) == sorted(stack.options)
    assert all(number for _, number in stack.versions)
    with pytest.raises(UsageError, match="no option 'speed'"):
        backend.resolve(backend.devices[0], {"speed": "high"})
    with pytest.raises(UsageError, match=r"no device 'abacus'.*it has"):
        backend.resolve("abacus", {})
    with pytest.raises(UsageError, match=r"2 threads cannot be bound to 1 physical core.*pinning=off"):
        backend.setup(Settings("cpu", 2, backend.resolve("cpu", {}), (0,)))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not backend.probe().ok
    assert f"pip install {backend.name}" in backend.probe().reason

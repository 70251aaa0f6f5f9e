"""Which units of a processor a kernel uses, by its name.

Matrix units are NVIDIA's Tensor Cores and Intel's AMX. Nobody documents the names; these rules were learnt from public
profiles (the table beside ``tests/analyzer/kernels/test_kernel_units.py`` says which), and none was verified on a
GPU here. A name that says nothing is ``UNKNOWN``, which is never counted as ``NO``.

What says so on a GPU: the shape of the instruction (``s16816gemm`` multiplies 16 x 8 x 16), the operation class of
CUTLASS (``tensorop``, ``simt``), the instruction itself (``hmma``, ``wgmma``, ``ffma``). ``xmma`` alone says nothing:
the same generator writes ``…_tensor16x8x8_…`` and ``…_ffma``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Units", "Use", "units_of"]


class Use(StrEnum):
    """Whether a kernel uses matrix units."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Units:
    """What a kernel computes with.

    Attributes:
        matrix: Whether it uses matrix units.
        name: Of the units, such as ``Tensor Cores``, ``AMX`` or ``AVX-512``; empty where the name does not say.
    """

    matrix: Use
    name: str = ""


_TENSOR_CORES = Units(Use.YES, "Tensor Cores")
_CUDA_CORES = Units(Use.NO, "CUDA cores")
_UNKNOWN = Units(Use.UNKNOWN)
_NONE = Units(Use.NO)

_GPU_ARCHITECTURE = r"(?:fermi|maxwell|pascal|volta|turing|ampere|hopper|blackwell|sm\d+)"

_RULES: tuple[tuple[str, Units], ...] = (
    # CPU: names of oneDNN, of frameworks that call it, and of OpenVINO. Upper case in older versions of the latter.
    (r"^reorder|^aten::(?:mkldnn_)?reorder", Units(Use.NO)),
    (r"(?<![a-z0-9])amx(?![a-z])", Units(Use.YES, "AMX")),
    (r"(?<![a-z])avx(?:512|10)", Units(Use.NO, "AVX-512")),
    (r"(?<![a-z])avx2", Units(Use.NO, "AVX2")),
    (r"(?:jit|brg\w*|gemm|uni)[_:]\w*avx(?![0-9])", Units(Use.NO, "AVX")),
    (r"(?:jit|uni)\w*[_:]sse4", Units(Use.NO, "SSE")),
    # GPU. CUDA cores first: such a name may also hold that of the generator.
    (r"simt|[_:]ffma|(?:implicit|explicit|precomputed)_convolve_sgemm|gemv|gemmk1|gemmSN_|splitKreduce", _CUDA_CORES),
    (rf"{_GPU_ARCHITECTURE}_(?:fp16_)?(?:[sdczh]gemm|[sdh]cudnn)", _CUDA_CORES),
    (r"fermi[SDCZ]gemm|winograd::|winograd_nonfused|fft2d|conv_depthwise|conv2d_grouped_direct", _CUDA_CORES),
    (r"tensorop|tensor\d+x\d+x\d+|[hi]mma|dmma|wmma|gmma|umma|tcgen05|nvjet_", _TENSOR_CORES),
    (r"(?<![a-z0-9])(?:tf32|bf16|f16)?[a-z](?:884|1688|16816|8816|16832|8832|16864)(?=[a-z_])", _TENSOR_CORES),
    (r"sm(?:90|1\d\d)\w*_xmma_\w*warpgroupsize|tf32f32", _TENSOR_CORES),
    (r"flash_(?:fwd|bwd|fprop|bprop)|fmha_cutlass[FB]_b?f16", _TENSOR_CORES),
)
"""The first that is found in a name decides."""

_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), units) for pattern, units in _RULES)

_SINGLE = re.compile(r"^(?:jit|brg|gemm|ref|uni|simple|onednn|matmul|convolution|inner_product)\w*.*[_:]f32$")
"""A primitive of the CPU in single precision, in which AMX has no products."""

_PRODUCTS = re.compile(
    r"gemm|gemv|conv|matmul|linear|[^m]mm(?:[^a-z]|$)|attention|sdpa|fmha|flash|lstm|gru|rnn|einsum|dot|fullyconnected|"
    r"inner_product",
    re.IGNORECASE,
)
_OTHER_WORK = re.compile(
    r"elementwise|element_wise|eltwise|pointwise|relu|gelu|sigmoid|clamp|softmax|pool|reduce|norm|CatArray|concat|"
    r"memcpy|memset|copy|nchwToNhwc|nhwcToNchw|transpose|reorder|permute|reshape|flatten|gather|index|embedding|"
    r"fill|scatter|resize|interpolat|shuffle|slice|cpp_fused|triton_(?:poi|red|per)_",
    re.IGNORECASE,
)
"""Work that no matrix unit does, where the name has no product beside it."""

_WHOLE = re.compile(
    r"^(?:aten::|com\.microsoft(?:\.nchwc)?\.)?(?:add|sub|mul|div|erf|exp|log|pow|sqrt|tanh|where|cast|sum|mean|max|min|"
    r"abs|neg|argmax|cat|equal|expand|unsqueeze|squeeze|split|tile|identity|clip|hardswish|hardsigmoid|dropout|clone|convert|"
    r"not|and|or|less|greater|shape|range|tril|triu|topk|t|view|_unsafe_view|_to_copy|contiguous)_?$",
    re.IGNORECASE,
)
"""The same for names that are whole words of an operator, too short to be looked for within others."""


def units_of(name: str, operator: str = "") -> Units:
    """The units that a kernel uses, by its name.

    Args:
        name: As the runtime prints it.
        operator: The operator that launched it: whatever runs for one that computes no products uses no matrix units.
    """
    for pattern, units in _COMPILED:
        if pattern.search(name):
            return units
    if _SINGLE.match(name) or _is_other_work(name) or _is_other_work(operator):
        return _NONE
    return _UNKNOWN


def _is_other_work(name: str) -> bool:
    return bool(_WHOLE.match(name) or (_OTHER_WORK.search(name) and not _PRODUCTS.search(name)))

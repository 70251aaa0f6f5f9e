"""Units from names: real names, with where each was seen.

No GPU was at hand: ``kernel_names.tsv`` has names of CUDA kernels from public profiles, by issue or pull request;
"public files" are profiles in the files of public repositories. A name that ends in dots was cut where it was printed.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from dlbricks.analyzer.kernels import Use, units_of

EXPECTED = {
    "Tensor Cores": (Use.YES, "Tensor Cores"),
    "AMX": (Use.YES, "AMX"),
    "CUDA cores": (Use.NO, "CUDA cores"),
    "AVX-512": (Use.NO, "AVX-512"),
    "AVX2": (Use.NO, "AVX2"),
    "no products": (Use.NO, ""),
    "unknown": (Use.UNKNOWN, ""),
}

with Path(__file__).with_name("kernel_names.tsv").open(newline="") as file:
    NAMES = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row["name"][:60])
def test_real_names(row):
    assert units_of(row["name"]) == EXPECTED[row["units"]], row["seen"]


@pytest.mark.parametrize(
    "name",
    ["", "my_own_kernel", "triton_tem_fused_mm_0", "sm80_xmma_gemm", "fused_gemm_relu", "examxp", "my_amxp_gemm"],
)
def test_a_name_that_says_nothing_is_unknown(name):
    assert units_of(name) == (Use.UNKNOWN, "")


@pytest.mark.parametrize(
    ("name", "operator", "use"),
    [
        ("jit_uni_bf16", "Reorder", Use.NO),
        ("jit_uni_bf16", "Convolution", Use.UNKNOWN),
        ("own_kernel", "aten::relu", Use.NO),
        ("own_kernel", "aten::addmm", Use.UNKNOWN),
        ("nvjet_tst_128x24_64x11_2x1_v_bz_TNT", "aten::relu", Use.YES),
    ],
)
def test_an_operator_without_products_uses_no_matrix_units(name, operator, use):
    assert units_of(name, operator)[0] is use


@pytest.mark.parametrize(
    "name", ["brg:avx512_core_amx_fp16", "jit_avx512_amx_bf16", "brgconv:avx10_2_amx_2", "BRGEMM_AMX"]
)
def test_matrix_units_of_the_cpu_are_a_word_of_the_name(name):
    assert units_of(name) == (Use.YES, "AMX")

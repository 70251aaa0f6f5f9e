"""Products of matrices."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import elementwise, operator

__all__: list[str] = []

elementwise("MatMul", torch.matmul)
elementwise("Det", torch.linalg.det)


@operator("Gemm")
def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """As a linear layer where it is one; ``alpha * A B + beta * C`` otherwise."""
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if not a.is_floating_point():
        alpha, beta = int(alpha), int(beta)
    if call.flag("transA"):
        a = torch.t(a)
    plain = alpha == 1 and (c is None or (beta == 1 and c.ndim == 1))
    if call.flag("transB") and plain and (c is None or c.shape[0] == b.shape[0]):
        return functional.linear(a, b, c)
    if call.flag("transB"):
        b = torch.t(b)
    if c is None:
        product = torch.mm(a, b)
        return product if alpha == 1 else torch.mul(product, alpha)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


@operator("Einsum")
def _einsum(call: Call, *operands: Tensor) -> Tensor:
    return torch.einsum(call.attributes["equation"], *operands)

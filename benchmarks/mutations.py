"""Change one number, index, axis or operand of proven rewrites, and count what the prover still accepts.

    python benchmarks/mutations.py MODEL... [--list FILES.tsv] [--wanted 500] [--out FOLDER]

``docs/results/mutations.json``. Of each kind of rewrite in a model four are taken. A change that makes no difference on
any draw of hard numbers is none, and is not counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from dlbricks.analyzer.rewriting.both_sides import Sides
from dlbricks.analyzer.rewriting.checked_model import read_subject
from dlbricks.analyzer.rewriting.checking import Checker
from dlbricks.analyzer.rewriting.engines import ENGINES
from dlbricks.analyzer.rewriting.evaluation import Unclear
from dlbricks.analyzer.rewriting.prover import Prover
from dlbricks.analyzer.rewriting.recording import Values
from dlbricks.analyzer.rewriting.rewrite import Rewrite, RewriteGraph
from dlbricks.errors import DlbricksError
from figures import parser, write
from improved import add_files, files

COMMUTATIVE = {"Add", "Mul", "Max", "Min", "Sum", "Mean", "Equal", "And", "Or", "Xor"}
OF_A_KIND, OF_A_REWRITE, ENGINE_S, PROOF_S = 4, 12, 5.0, 8.0


def main() -> None:
    """Change proven rewrites of models until there are enough."""
    arguments = parser(__doc__)
    add_files(arguments)
    arguments.add_argument("--wanted", type=int, default=500)
    options = arguments.parse_args()
    counts, accepted = Counter[str](), list[str]()
    for path, dims, _ in files(options):
        for kind, change, reason in changed(path, dims):
            counts[kind] += 1
            if reason:
                accepted.append(f"{Path(path).stem}: {kind}: {change} ({reason})")
        figures = {"changes": counts.total(), "by_kind": dict(counts.most_common()), "accepted": accepted}
        told = f"{Path(path).stem}: {counts.total()} changes, {len(accepted)} accepted"
        write(options.out / "mutations.json", figures, told)
        if counts.total() >= options.wanted:
            break
    print(*accepted, sep="\n")


def changed(path: str, dims: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of a proven rewrite, a change of it, and the reason if it is still accepted."""
    try:
        subject = read_subject(Path(path), None, dims)
        checker = Checker(subject, threads=1, noise_ok=False, until=time.perf_counter())
    except DlbricksError:
        return
    values = Values(RewriteGraph(subject.model), checker.usable[:1], checker.others)
    prover, kinds = Prover(values, {}), Counter[str]()
    random = np.random.default_rng(0)
    for engine, _ in ENGINES.values():
        for rewrite in engine(values, time.perf_counter() + ENGINE_S):
            kinds[rewrite.kind] += 1
            if kinds[rewrite.kind] > OF_A_KIND or not prover.prove(rewrite, most_s=PROOF_S).reason:
                continue
            for _ in range(OF_A_REWRITE):
                change = mutated(rewrite, random)
                if change is not None and differs(prover, rewrite, change[1], values):
                    yield rewrite.kind, change[0], prover.prove(change[1], most_s=PROOF_S).reason


def mutated(rewrite: Rewrite, random: np.random.Generator) -> tuple[str, Rewrite] | None:
    """Return a description and a rewrite with one change; None if the draw found nothing to change."""
    what = random.choice(["constant", "attribute", "operand", "operator"])
    if what == "constant":
        names = [name for name, array in rewrite.constants.items() if array.size and array.dtype.kind in "fiu"]
        return _constant(rewrite, str(random.choice(names)), random) if names else None
    place = int(random.integers(len(rewrite.nodes)))
    node = onnx.NodeProto()
    node.CopyFrom(rewrite.nodes[place])
    if what == "attribute":
        attributes = [own for own in node.attribute if own.name in NUMBERS]
        if not attributes:
            return None
        own = attributes[int(random.integers(len(attributes)))]
        if own.type == onnx.AttributeProto.FLOAT:
            own.f *= 1.01
        elif own.type == onnx.AttributeProto.INT:
            own.i += int(random.choice([-1, 1]))
        elif own.ints:
            own.ints[int(random.integers(len(own.ints)))] += int(random.choice([-1, 1]))
        told = f"{node.op_type}.{own.name}"
    elif what == "operand" and len(node.input) > 1 and node.op_type not in COMMUTATIVE:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        told = f"operands of {node.op_type}"
    elif what == "operator" and node.op_type in OTHERS:
        told = f"{node.op_type} as {OTHERS[node.op_type]}"
        node.op_type = OTHERS[node.op_type]
        node.domain = ""
    else:
        return None
    nodes = [*rewrite.nodes]
    nodes[place] = node
    return told, replace(rewrite, nodes=tuple(nodes))


NUMBERS = frozenset({"alpha", "axis", "beta", "dilations", "epsilon", "group", "keepdims", "pads", "perm", "strides"})
OTHERS = {
    "Add": "Sub", "Div": "Mul", "FastGelu": "Sigmoid", "Gelu": "Relu", "HardSigmoid": "Sigmoid", "Mul": "Add",
    "Relu": "Abs", "Sqrt": "Abs", "Sub": "Add", "Sum": "Mean", "Tanh": "Erf",
}  # fmt: skip


def _constant(rewrite: Rewrite, name: str, random: np.random.Generator) -> tuple[str, Rewrite]:
    array = rewrite.constants[name].copy()
    place = int(random.integers(array.size))
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        flat[place] += 0.01 * flat[place] if flat[place] else 0.01
    else:
        flat[place] += 1
    exact = {other: own for other, own in rewrite.exact.items() if other != name}
    return f"element {place} of a constant", replace(rewrite, constants={**rewrite.constants, name: array}, exact=exact)


def differs(prover: Prover, rewrite: Rewrite, changed: Rewrite, values: Values) -> bool:
    """Return True if a changed rewrite computes something else than before on hard numbers, or cannot run."""
    try:
        before, after = (Sides(prover._case(own, 0), values.runs[0], values) for own in (rewrite, changed))  # noqa: SLF001
        return any(changes(before, after, number) for number in (0, 6, 7))
    except (Unclear, DlbricksError):
        return True


def changes(before: Sides, after: Sides, number: int) -> bool:
    """Return True if the new nodes differ on a draw."""
    from dlbricks.analyzer.rewriting import both_sides as module

    feeds = before._drawn(number, *module._DRAWS[number])  # noqa: SLF001
    try:
        pairs = zip(*(side.run(1, feeds, list(side.case.targets.values())) for side in (before, after)), strict=True)
        return any(not np.array_equal(old, new, equal_nan=True) for old, new in pairs)
    except Exception:  # noqa: BLE001  # it does not run
        return True


if __name__ == "__main__":
    main()

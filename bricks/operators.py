"""The table of operators, with one row for each: all code that depends on the kind of an operator reads this table.

A row states the data that an output element depends on (``Kind``), further properties (``Trait``), and the data that
the outputs' shapes depend on. It also states the arithmetic, the parameters, and the inputs that decide. Backends add
their implementations. The prover of rewrites (``analyzer/rewriting/evaluation.py``) adds definitions on real numbers.
``generator/network/legality`` adds the legal inputs, if these are more than a range of numbers.

A new operator is a row here and one line in each backend that computes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum, Flag, auto

import onnx

from ..models.subgraphs import plain_domain
from .costs import elementwise, linear, result_types
from .costs import runtime_fusions as fused
from .costs.costed_node import CostedNode, Formula, UnknownCostError
from .costs.result_types import ResultTypes
from .layer import Cost

MICROSOFT, BLOCKED = "com.microsoft", "com.microsoft.nchwc"
"""Domains of ONNX Runtime's own operators, and of its operators in the blocked layout."""


class Kind(Flag):
    """The kind of computation of an operator, by the data that an element of its output depends on."""

    ELEMENTWISE = auto()
    """On one element of each operand, after broadcasting."""
    VIEW = auto()
    """On the element at the same place in memory: the order of elements stays as it is."""
    MOVE = auto()
    """On one element of the data; which one, shapes, indices and sizes decide."""
    REDUCTION = auto()
    """On all elements along the axes that a second input names."""
    SCAN = auto()
    """On the elements before it along one axis."""
    SELECTION = auto()
    """On all elements along one axis, or of the input: places of elements, or the elements that belong there."""
    CONVOLUTION = auto()
    """On a window of all channels of its group, multiplied with weights."""
    PRODUCT = auto()
    """On a row and a column, multiplied."""
    POOL = auto()
    """On a window of one channel."""
    GLOBAL_POOL = auto()
    """On one channel."""
    REGION = auto()
    """On a region of one channel, which another input names."""
    NORMALISATION = auto()
    """On a group of elements, through their mean or size, and on a scale and a bias."""
    SOFTMAX = auto()
    """On the elements along one axis, through their exponentials or their largest."""
    LOSS = auto()
    """On all scores of a sample and its class."""
    RECURRENT = auto()
    """On all earlier steps of a sequence, multiplied with weights."""
    ATTENTION = auto()
    """On a query, and on all keys and values that it sees."""
    RESAMPLING = auto()
    """On the elements next to a place between them."""
    TRANSFORM = auto()
    """On all elements of a signal, or of a part of it."""
    CONVERSION = auto()
    """On one element, a scale and a zero point: between real and quantised values."""
    QUANTISED = auto()
    """As an operator of another kind, computed on quantised values."""
    GENERATOR = auto()
    """On a size or an index alone."""
    MEASURE = auto()
    """On the shape of the input, not on its elements."""
    RANDOM = auto()
    """On chance: its results differ at each inference, so that it is never folded."""
    CONTROL = auto()
    """On graphs in its attributes."""
    SEQUENCE = auto()
    """On a list of tensors, or on a tensor that may be absent."""
    TEXT = auto()
    """On characters, or on the bytes of a picture."""


class Trait(Flag):
    """Further properties of an operator."""

    REAL = auto()
    """Sums, products, quotients, powers and roots of real numbers: equal terms of them are equal by algebra."""
    EXACT = auto()
    """Sums of products that ONNX Runtime computes in double precision too."""
    AFFINE = auto()
    """Elementwise, and affine in its first operand."""
    SUMS = auto()
    """Linear in all of its operands together."""
    RISING = auto()
    """Never falls, with attributes of the usual sign: it commutes with a maximum."""
    JUMPS = auto()
    """May jump between two numbers, so that a sample of numbers may miss the jump."""
    MAXIMUM = auto()
    """A maximum over elements."""
    WHOLE = auto()
    """Exact for integers that do not overflow."""
    COUNTS = auto()
    """Computes sums of products of sizes from sizes, so that a few sizes show all of them."""
    UNBOUNDED = auto()
    """Not finite, or not zero, at a zero or at another finite number."""
    POSITIVE = auto()
    """Makes positive values of positive values."""
    PASSES = auto()
    """Elements keep their values, although it is no move."""
    CASTS = auto()
    """Keeps the value of each element as far as another type holds it."""
    INDEXES = auto()
    """Computes an index in common models: with ones as inputs its results stay small."""
    COMPARES = auto()
    """Compares by size."""
    FILLS = auto()
    """Repeats one number."""
    ORDERS = auto()
    """Makes a matrix of future positions of another one."""
    MASKS = auto()
    """Keeps masked scores, or masks to add to scores, masked."""
    ROWS = auto()
    """Works along one axis, a row at a time."""
    SCALARS = auto()
    """Its other inputs are scalars, which are not broadcast."""
    CLAMPS = auto()
    """A quantisation after it replaces it, since that saturates."""
    SELECTS = auto()
    """Reads at most as many bytes of its first input as it writes."""
    STRIDED = auto()
    """Its result can be a strided view: an eager runtime moves nothing, and the reader pays."""
    THROUGH = auto()
    """Passes a strided view on."""
    IDLE = auto()
    """Returns its input unchanged if both have the same type."""
    UNMOVED = auto()
    """Moves no data at inference, although it is no view."""
    SHRINKS = auto()
    """Its result is often smaller than its input."""
    REPEATS = auto()
    """Its result often repeats elements of its input."""
    QUANTISABLE = auto()
    """ONNX Runtime has a kernel on the CPU that reads and writes quantised values."""
    FUSES = auto()
    """Runtimes compute it on the way of a convolution or product."""
    SLOW = auto()
    """ONNX Runtime has no vectorised kernel for it on the CPU."""
    IN_PLACE = auto()
    """Extends a cache in the memory that it reads, if past and present are declared alike."""
    OVERWRITES = auto()
    """ONNX Runtime's kernel on the CPU may write its result over its first input (``MayInplace(0, 0)``)."""
    SCRATCH = auto()
    """ONNX Runtime's kernel on the CPU fills temporary memory larger than its input, which no other operator uses."""
    VALUED = auto()
    """Its time depends on the values of its operands, on equal shapes: it searches, branches by element (PRelu on mixed
    signs takes eight times as long as on equal ones), or calls functions with a path for each range (Tan)."""


class ShapedBy(Enum):
    """The data that the shapes of an operator's outputs depend on, in addition to its attributes."""

    SHAPES = auto()
    """On the shapes of its operands, and on no contents."""
    OTHERS = auto()
    """Also on the contents of operands other than the first."""
    OPERANDS = auto()
    """Perhaps on the contents of every operand."""
    CONTENTS = auto()
    """On the contents of its data."""


_NONE = Trait(0)


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table.

    Attributes:
        name: The operator.
        kind: The data that an element of its output depends on.
        work: Its arithmetic; None if that is not known, or is ``each`` per element.
        each: Formula and work of one output element; None if that is not all.
        results: Types of the outputs, of an operator that ONNX's shape inference does not know; None if unknown.
        traits: Further properties.
        shaped_by: The data that the shapes of its outputs depend on.
        data: Of moves and sums: slots of operands that are data; None for all. The others are sizes and indices.
        neutral: The second operand that changes nothing; None without one.
        parameters: Slots of weights, biases, tables, and scales of normalisation and quantisation. Their values never
            enter a key. Zero points are not parameters, because runtimes choose kernels by them.
        deciding: Slots with values that decide shape, legality or work.
        course: Number of first slots that decide which body runs, or how often.
        caches: Slots of past keys and values, each with the output that extends them along the last axis but one.
        roles: Slots with a special meaning in a decoder of text: ``rows`` of a table, ``positions``, ``mask``,
            ``last`` position of each sequence, and ``total`` number of positions.
        domain: Its domain; empty for ONNX's own.
    """

    name: str
    kind: Kind
    work: Formula | None = None
    each: tuple[str, Cost] | None = None
    results: ResultTypes | None = None
    traits: Trait = _NONE
    shaped_by: ShapedBy = ShapedBy.SHAPES
    data: tuple[int, ...] | None = (0,)
    neutral: int | None = None
    parameters: tuple[int, ...] = ()
    deciding: tuple[int, ...] = ()
    course: int = 0
    caches: tuple[tuple[int, int], ...] = ()
    roles: tuple[tuple[int, str], ...] = ()
    domain: str = ""

    def arithmetic(self, call: CostedNode) -> Cost:
        """Return the work of one call, without bytes.

        Raises:
            UnknownCostError: It is not known.
        """
        if self.work is not None:
            return self.work(call)
        if self.each is None:
            raise UnknownCostError(f"the work of {call.node.op_type} is not known")
        return call.output().elements * self.each[1]


UNKNOWN = Operator("", Kind(0), shaped_by=ShapedBy.OPERANDS)
"""The row of an operator that is missing in the table."""

_ADD, _MUL, _DIV = Cost(additions=1), Cost(multiplications=1), Cost(divisions=1)
_EXP, _CMP = Cost(exponentials=1), Cost(comparisons=1)
_T = Trait
ROWS, POSITIONS, MASK, LAST, TOTAL = "rows", "positions", "mask", "last", "total"
"""Words of ``Operator.roles``."""
_SHAPES, _OTHERS, _OPERANDS, _CONTENTS = ShapedBy.SHAPES, ShapedBy.OTHERS, ShapedBy.OPERANDS, ShapedBy.CONTENTS

# fmt: off
_ROWS = (
    # elementwise
    Operator("Abs", Kind.ELEMENTWISE, each=("|x|", _CMP), traits=_T.POSITIVE),
    Operator("Acos", Kind.ELEMENTWISE, each=("acos(x)", _EXP), traits=_T.SLOW),
    Operator("Acosh", Kind.ELEMENTWISE, each=("acosh(x)", _EXP), traits=_T.VALUED),
    Operator("Add", Kind.ELEMENTWISE, each=("a + b", _ADD),
             traits=_T.REAL | _T.AFFINE | _T.WHOLE | _T.COUNTS | _T.POSITIVE | _T.INDEXES | _T.MASKS
             | _T.QUANTISABLE | _T.SUMS,
             data=None, neutral=0),
    Operator("And", Kind.ELEMENTWISE, each=("a and b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.ORDERS),
    Operator("Asin", Kind.ELEMENTWISE, each=("asin(x)", _EXP), traits=_T.SLOW),
    Operator("Asinh", Kind.ELEMENTWISE, each=("asinh(x)", _EXP), traits=_T.VALUED),
    Operator("Atan", Kind.ELEMENTWISE, each=("atan(x)", _EXP), traits=_T.RISING | _T.SLOW),
    Operator("Atanh", Kind.ELEMENTWISE, each=("atanh(x)", _EXP), traits=_T.VALUED),
    Operator("BitCast", Kind.ELEMENTWISE, work=elementwise.move, traits=_T.JUMPS),
    Operator("BitShift", Kind.ELEMENTWISE, each=("a << b", _MUL), traits=_T.JUMPS),
    Operator("BitwiseAnd", Kind.ELEMENTWISE, each=("a & b", _CMP), traits=_T.JUMPS),
    Operator("BitwiseNot", Kind.ELEMENTWISE, each=("~a", _CMP), traits=_T.JUMPS),
    Operator("BitwiseOr", Kind.ELEMENTWISE, each=("a | b", _CMP), traits=_T.JUMPS),
    Operator("BitwiseXor", Kind.ELEMENTWISE, each=("a ^ b", _CMP), traits=_T.JUMPS),
    Operator("Cast", Kind.ELEMENTWISE, work=elementwise.move,
             traits=_T.AFFINE | _T.COUNTS | _T.PASSES | _T.FILLS | _T.ORDERS | _T.MASKS | _T.IDLE
             | _T.CASTS | _T.OVERWRITES),
    Operator("CastLike", Kind.ELEMENTWISE, work=elementwise.move,
             traits=_T.PASSES | _T.ORDERS | _T.MASKS | _T.CASTS | _T.OVERWRITES),
    Operator("Ceil", Kind.ELEMENTWISE, each=("ceil(x)", _CMP), traits=_T.JUMPS),
    Operator("Celu", Kind.ELEMENTWISE,
             each=("max(0, x) + min(0, alpha (exp(x / alpha) - 1))", _CMP + _CMP + _ADD + _ADD + _MUL + _DIV + _EXP),
             traits=_T.SLOW | _T.OVERWRITES),
    Operator("Clip", Kind.ELEMENTWISE, each=("min(max(x, low), high)", _CMP + _CMP), work=elementwise.clip,
             traits=_T.INDEXES | _T.SCALARS | _T.CLAMPS | _T.FUSES | _T.OVERWRITES),
    Operator("Cos", Kind.ELEMENTWISE, each=("cos(x)", _EXP), traits=_T.SLOW),
    Operator("Cosh", Kind.ELEMENTWISE, each=("cosh(x)", _EXP), traits=_T.VALUED),
    Operator("Div", Kind.ELEMENTWISE, each=("a / b", _DIV),
             traits=_T.REAL | _T.AFFINE | _T.UNBOUNDED | _T.POSITIVE | _T.INDEXES | _T.MASKS, neutral=1),
    Operator("Dropout", Kind.ELEMENTWISE, work=elementwise.dropout,
             traits=_T.PASSES | _T.SCALARS | _T.UNMOVED | _T.THROUGH),
    Operator("Elu", Kind.ELEMENTWISE, each=("x if x >= 0 else alpha (exp(x) - 1)", _CMP + _ADD + _MUL + _EXP),
             traits=_T.OVERWRITES),
    Operator("Equal", Kind.ELEMENTWISE, each=("a == b", _CMP), traits=_T.JUMPS | _T.INDEXES),
    Operator("Erf", Kind.ELEMENTWISE, each=("erf(x)", _EXP), traits=_T.RISING),
    Operator("Exp", Kind.ELEMENTWISE, each=("exp(x)", _EXP), traits=_T.RISING | _T.UNBOUNDED),
    Operator("Floor", Kind.ELEMENTWISE, each=("floor(x)", _CMP), traits=_T.JUMPS),
    Operator("Gelu", Kind.ELEMENTWISE, each=("0.5 x (1 + erf(x / sqrt 2))", _ADD + 3 * _MUL + _EXP),
             work=elementwise.gelu),
    Operator("Greater", Kind.ELEMENTWISE, each=("a > b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.COMPARES),
    Operator("GreaterOrEqual", Kind.ELEMENTWISE, each=("a >= b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.COMPARES),
    Operator("HardSigmoid", Kind.ELEMENTWISE, each=("max(0, min(1, alpha x + beta))", _CMP + _CMP + _ADD + _MUL),
             traits=_T.RISING | _T.FUSES | _T.OVERWRITES),
    Operator("HardSwish", Kind.ELEMENTWISE, each=("x max(0, min(1, x / 6 + 0.5))", _CMP + _CMP + _ADD + _MUL + _MUL),
             traits=_T.SLOW),
    Operator("IsInf", Kind.ELEMENTWISE, each=("x is infinite", _CMP), traits=_T.JUMPS),
    Operator("IsNaN", Kind.ELEMENTWISE, each=("x is not a number", _CMP), traits=_T.JUMPS),
    Operator("LeakyRelu", Kind.ELEMENTWISE, each=("x if x >= 0 else alpha x", _CMP + _MUL),
             traits=_T.RISING | _T.QUANTISABLE | _T.FUSES | _T.OVERWRITES),
    Operator("Less", Kind.ELEMENTWISE, each=("a < b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.COMPARES),
    Operator("LessOrEqual", Kind.ELEMENTWISE, each=("a <= b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.COMPARES),
    Operator("Log", Kind.ELEMENTWISE, each=("log(x)", _EXP), traits=_T.REAL | _T.RISING | _T.UNBOUNDED),
    Operator("Max", Kind.ELEMENTWISE, work=elementwise.compare_all, traits=_T.POSITIVE | _T.INDEXES | _T.MASKS),
    Operator("Mean", Kind.ELEMENTWISE, work=elementwise.mean_all, traits=_T.REAL | _T.POSITIVE),
    Operator("Min", Kind.ELEMENTWISE, work=elementwise.compare_all, traits=_T.POSITIVE | _T.INDEXES | _T.MASKS),
    Operator("Mish", Kind.ELEMENTWISE, each=("x tanh(log(1 + exp(x)))", _ADD + _MUL + 3 * _EXP), traits=_T.SLOW),
    Operator("Mod", Kind.ELEMENTWISE, each=("a - b floor(a / b)", _ADD + _MUL + _DIV), traits=_T.JUMPS | _T.INDEXES),
    Operator("Mul", Kind.ELEMENTWISE, each=("a b", _MUL),
             traits=_T.REAL | _T.AFFINE | _T.WHOLE | _T.COUNTS | _T.POSITIVE | _T.INDEXES | _T.MASKS | _T.QUANTISABLE,
             data=None, neutral=1),
    Operator("Neg", Kind.ELEMENTWISE, each=("-x", _ADD), traits=_T.REAL | _T.AFFINE | _T.WHOLE | _T.COUNTS),
    Operator("Not", Kind.ELEMENTWISE, each=("not a", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.ORDERS),
    Operator("Or", Kind.ELEMENTWISE, each=("a or b", _CMP), traits=_T.JUMPS | _T.INDEXES | _T.ORDERS),
    Operator("PRelu", Kind.ELEMENTWISE, each=("x if x >= 0 else slope x", _CMP + _MUL), traits=_T.VALUED | _T.SLOW,
             parameters=(1,)),
    Operator("Pow", Kind.ELEMENTWISE, work=elementwise.power, traits=_T.REAL | _T.UNBOUNDED | _T.POSITIVE | _T.SLOW,
             neutral=1),
    Operator("Reciprocal", Kind.ELEMENTWISE, each=("1 / x", _DIV), traits=_T.REAL | _T.UNBOUNDED),
    Operator("Relu", Kind.ELEMENTWISE, each=("max(0, x)", _CMP),
             traits=_T.RISING | _T.POSITIVE | _T.CLAMPS | _T.FUSES | _T.OVERWRITES),
    Operator("Round", Kind.ELEMENTWISE, each=("round(x)", _CMP), traits=_T.JUMPS),
    Operator("Selu", Kind.ELEMENTWISE,
             each=("gamma (x if x > 0 else alpha exp(x) - alpha)", _CMP + _ADD + _MUL + _MUL + _EXP),
             traits=_T.SLOW | _T.OVERWRITES),
    Operator("Shrink", Kind.ELEMENTWISE,
             each=("x + bias if x < -lambda, x - bias if x > lambda, else 0", _CMP + _CMP + _ADD),
             traits=_T.VALUED | _T.JUMPS | _T.OVERWRITES),
    Operator("Sigmoid", Kind.ELEMENTWISE, each=("1 / (1 + exp(-x))", _EXP),
             traits=_T.RISING | _T.QUANTISABLE | _T.FUSES | _T.OVERWRITES),
    Operator("Sign", Kind.ELEMENTWISE, each=("sign(x)", _CMP), traits=_T.JUMPS),
    Operator("Sin", Kind.ELEMENTWISE, each=("sin(x)", _EXP), traits=_T.SLOW),
    Operator("Sinh", Kind.ELEMENTWISE, each=("sinh(x)", _EXP), traits=_T.VALUED),
    Operator("Softplus", Kind.ELEMENTWISE, each=("log(1 + exp(x))", _ADD + _EXP + _EXP),
             traits=_T.VALUED | _T.RISING | _T.OVERWRITES),
    Operator("Softsign", Kind.ELEMENTWISE, each=("x / (1 + |x|)", _CMP + _ADD + _DIV),
             traits=_T.RISING | _T.OVERWRITES),
    Operator("Sqrt", Kind.ELEMENTWISE, each=("sqrt(x)", _DIV),
             traits=_T.REAL | _T.RISING | _T.UNBOUNDED | _T.POSITIVE),
    Operator("Sub", Kind.ELEMENTWISE, each=("a - b", _ADD),
             traits=_T.REAL | _T.AFFINE | _T.WHOLE | _T.COUNTS | _T.INDEXES | _T.ORDERS | _T.MASKS | _T.SUMS, data=None,
             neutral=0),
    Operator("Sum", Kind.ELEMENTWISE, work=elementwise.add_all,
             traits=_T.REAL | _T.WHOLE | _T.POSITIVE | _T.SUMS, data=None),
    Operator("SwiGLU", Kind.ELEMENTWISE, each=("a sigmoid(alpha a) b", 3 * _MUL + _EXP)),
    Operator("Swish", Kind.ELEMENTWISE, each=("x sigmoid(alpha x)", _MUL + _MUL + _EXP)),
    Operator("Tan", Kind.ELEMENTWISE, each=("tan(x)", _EXP), traits=_T.VALUED | _T.SLOW),
    Operator("Tanh", Kind.ELEMENTWISE, each=("tanh(x)", _EXP), traits=_T.RISING | _T.FUSES | _T.OVERWRITES),
    Operator("ThresholdedRelu", Kind.ELEMENTWISE, each=("x if x > alpha else 0", _CMP),
             traits=_T.JUMPS | _T.SLOW | _T.OVERWRITES),
    Operator("Where", Kind.ELEMENTWISE, each=("a if condition else b", _CMP),
             traits=_T.JUMPS | _T.INDEXES | _T.MASKS | _T.QUANTISABLE),
    Operator("Xor", Kind.ELEMENTWISE, each=("a xor b", _CMP), traits=_T.JUMPS),
    # a view of everything
    Operator("Identity", Kind.VIEW | Kind.ELEMENTWISE, work=elementwise.move,
             traits=_T.RISING | _T.COUNTS | _T.THROUGH),
    # view
    Operator("Flatten", Kind.VIEW, work=elementwise.move, traits=_T.QUANTISABLE),
    Operator("Reshape", Kind.VIEW, work=elementwise.move, traits=_T.COUNTS | _T.QUANTISABLE, deciding=(1,),
             shaped_by=_OTHERS),
    Operator("Squeeze", Kind.VIEW, work=elementwise.move, traits=_T.COUNTS | _T.QUANTISABLE | _T.THROUGH,
             deciding=(1,), shaped_by=_OTHERS),
    Operator("Unsqueeze", Kind.VIEW, work=elementwise.move, traits=_T.COUNTS | _T.QUANTISABLE | _T.THROUGH,
             deciding=(1,), shaped_by=_OTHERS),
    # move
    Operator("CenterCropPad", Kind.MOVE, work=elementwise.move, shaped_by=_OTHERS, deciding=(1,)),
    Operator("Compress", Kind.MOVE, work=elementwise.move, traits=_T.VALUED, shaped_by=_CONTENTS, deciding=(1,)),
    Operator("Concat", Kind.MOVE, work=elementwise.move, traits=_T.COUNTS | _T.QUANTISABLE | _T.SUMS, data=None),
    Operator("DepthToSpace", Kind.MOVE, work=elementwise.move),
    Operator("Expand", Kind.MOVE, work=elementwise.move,
             traits=_T.FILLS | _T.ORDERS | _T.MASKS | _T.STRIDED | _T.IDLE | _T.REPEATS, shaped_by=_OTHERS,
             deciding=(1,)),
    Operator("Gather", Kind.MOVE, work=elementwise.move, traits=_T.COUNTS | _T.SELECTS | _T.SHRINKS,
             parameters=(0,), roles=((1, ROWS),)),
    Operator("GatherElements", Kind.MOVE, work=elementwise.move, traits=_T.SELECTS, parameters=(0,)),
    Operator("GatherND", Kind.MOVE, work=elementwise.move, traits=_T.SELECTS, parameters=(0,)),
    Operator("Pad", Kind.MOVE, work=elementwise.move, shaped_by=_OTHERS, deciding=(1, 3)),
    Operator("ReverseSequence", Kind.MOVE, work=elementwise.move, deciding=(1,)),
    Operator("Scatter", Kind.MOVE, work=elementwise.move, data=(0, 2), shaped_by=_OPERANDS, traits=_T.OVERWRITES),
    Operator("ScatterElements", Kind.MOVE, work=elementwise.scatter, traits=_T.INDEXES | _T.OVERWRITES, data=(0, 2)),
    Operator("ScatterND", Kind.MOVE, work=elementwise.scatter, traits=_T.INDEXES, data=(0, 2)),
    Operator("Slice", Kind.MOVE, work=elementwise.move,
             traits=_T.COUNTS | _T.ORDERS | _T.MASKS | _T.SELECTS | _T.STRIDED | _T.IDLE | _T.SHRINKS,
             shaped_by=_OTHERS, deciding=(1, 2, 3, 4)),
    Operator("SpaceToDepth", Kind.MOVE, work=elementwise.move),
    Operator("Split", Kind.MOVE, work=elementwise.move, traits=_T.COUNTS | _T.STRIDED | _T.QUANTISABLE,
             shaped_by=_OTHERS, deciding=(1,)),
    Operator("TensorScatter", Kind.MOVE, work=elementwise.move, data=(0, 1), shaped_by=_OPERANDS),
    Operator("Tile", Kind.MOVE, work=elementwise.move, traits=_T.ORDERS | _T.MASKS | _T.IDLE | _T.REPEATS,
             shaped_by=_OTHERS, deciding=(1, 2)),
    Operator("Transpose", Kind.MOVE, work=elementwise.move, traits=_T.ORDERS | _T.STRIDED | _T.QUANTISABLE),
    Operator("Trilu", Kind.MOVE, work=elementwise.move, deciding=(1,), traits=_T.OVERWRITES),
    # reduction
    Operator("ReduceL1", Kind.REDUCTION, work=elementwise.ABSOLUTE_SUM, traits=_T.ROWS, deciding=(1,),
             shaped_by=_OTHERS),
    Operator("ReduceL2", Kind.REDUCTION, work=elementwise.NORM, traits=_T.REAL | _T.POSITIVE | _T.ROWS,
             deciding=(1,), shaped_by=_OTHERS),
    Operator("ReduceLogSum", Kind.REDUCTION, work=elementwise.LOG_SUM, traits=_T.ROWS, deciding=(1,),
             shaped_by=_OTHERS),
    Operator("ReduceLogSumExp", Kind.REDUCTION, work=elementwise.LOG_SUM_EXP, traits=_T.ROWS,
             deciding=(1,), shaped_by=_OTHERS),
    Operator("ReduceMax", Kind.REDUCTION, work=elementwise.COMPARED,
             traits=_T.MAXIMUM | _T.POSITIVE | _T.INDEXES | _T.ROWS | _T.SHRINKS, deciding=(1,),
             shaped_by=_OTHERS),
    Operator("ReduceMean", Kind.REDUCTION, work=elementwise.AVERAGED,
             traits=_T.EXACT | _T.POSITIVE | _T.ROWS | _T.SHRINKS | _T.QUANTISABLE, deciding=(1,), shaped_by=_OTHERS),
    Operator("ReduceMin", Kind.REDUCTION, work=elementwise.COMPARED,
             traits=_T.POSITIVE | _T.ROWS | _T.SHRINKS, deciding=(1,), shaped_by=_OTHERS),
    Operator("ReduceProd", Kind.REDUCTION, work=elementwise.MULTIPLIED, traits=_T.COUNTS | _T.ROWS,
             deciding=(1,), shaped_by=_OTHERS),
    Operator("ReduceSum", Kind.REDUCTION, work=elementwise.ADDED,
             traits=_T.EXACT | _T.COUNTS | _T.POSITIVE | _T.INDEXES | _T.ROWS | _T.SHRINKS, deciding=(1,),
             shaped_by=_OTHERS),
    Operator("ReduceSumSquare", Kind.REDUCTION, work=elementwise.SQUARE_SUM, traits=_T.REAL | _T.ROWS,
             deciding=(1,), shaped_by=_OTHERS),
    # scan
    Operator("CumProd", Kind.SCAN, work=elementwise.MULTIPLIED, shaped_by=_OPERANDS),
    Operator("CumSum", Kind.SCAN, work=elementwise.ADDED, traits=_T.EXACT | _T.INDEXES | _T.ROWS,
             shaped_by=_SHAPES, deciding=(1,)),
    # selection
    Operator("ArgMax", Kind.SELECTION, work=elementwise.COMPARED, traits=_T.INDEXES | _T.ROWS,
             shaped_by=_SHAPES),
    Operator("ArgMin", Kind.SELECTION, work=elementwise.COMPARED, traits=_T.ROWS),
    Operator("NonMaxSuppression", Kind.SELECTION, work=elementwise.non_max_suppression, traits=_T.VALUED,
             shaped_by=_CONTENTS, deciding=(2, 3, 4)),
    Operator("NonZero", Kind.SELECTION, work=elementwise.COMPARED, traits=_T.VALUED, shaped_by=_CONTENTS),
    Operator("TopK", Kind.SELECTION, work=elementwise.top_k, traits=_T.PASSES | _T.ROWS | _T.VALUED,
             shaped_by=_OTHERS, deciding=(1,)),
    Operator("Unique", Kind.SELECTION, work=elementwise.unique, traits=_T.VALUED, shaped_by=_CONTENTS),
    # convolution
    Operator("CausalConvWithState", Kind.CONVOLUTION, work=linear.causal_conv_with_state, shaped_by=_OPERANDS,
             parameters=(1, 2)),
    Operator("Conv", Kind.CONVOLUTION, work=linear.conv, traits=_T.REAL | _T.QUANTISABLE, parameters=(1, 2)),
    Operator("ConvTranspose", Kind.CONVOLUTION, work=linear.conv_transpose, traits=_T.REAL | _T.SCRATCH,
             parameters=(1, 2)),
    Operator("DeformConv", Kind.CONVOLUTION, work=linear.deform_conv, shaped_by=_OPERANDS, parameters=(1, 3)),
    # product
    Operator("Det", Kind.PRODUCT, work=linear.det, shaped_by=_OPERANDS),
    Operator("Einsum", Kind.PRODUCT, work=linear.einsum, traits=_T.EXACT, data=None,
             parameters=tuple(range(8))),
    Operator("Gemm", Kind.PRODUCT, work=linear.gemm, traits=_T.REAL | _T.QUANTISABLE, data=None, parameters=(0, 1, 2)),
    Operator("MatMul", Kind.PRODUCT, work=linear.matmul, traits=_T.REAL | _T.QUANTISABLE, data=None,
             parameters=(0, 1)),
    # pool
    Operator("AveragePool", Kind.POOL, work=linear.average_pool,
             traits=_T.REAL | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE),
    Operator("LpPool", Kind.POOL, work=linear.lp_pool),
    Operator("MaxPool", Kind.POOL, work=linear.max_pool,
             traits=_T.MAXIMUM | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE),
    # global pool
    Operator("GlobalAveragePool", Kind.GLOBAL_POOL, work=elementwise.AVERAGED,
             traits=_T.REAL | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE),
    Operator("GlobalLpPool", Kind.GLOBAL_POOL, work=linear.global_lp_pool),
    Operator("GlobalMaxPool", Kind.GLOBAL_POOL, work=elementwise.COMPARED, traits=_T.MAXIMUM | _T.SHRINKS),
    # region
    Operator("MaxRoiPool", Kind.REGION, work=linear.max_roi_pool, shaped_by=_OPERANDS),
    Operator("MaxUnpool", Kind.REGION, work=elementwise.move, deciding=(2,), shaped_by=_OPERANDS),
    Operator("RoiAlign", Kind.REGION, work=linear.roi_align, shaped_by=_OPERANDS),
    # normalisation
    Operator("BatchNormalization", Kind.NORMALISATION, work=elementwise.batch_norm,
             traits=_T.REAL | _T.AFFINE | _T.FUSES, parameters=(1, 2, 3, 4)),
    Operator("GroupNormalization", Kind.NORMALISATION, work=elementwise.group_norm, parameters=(1, 2)),
    Operator("InstanceNormalization", Kind.NORMALISATION, work=elementwise.instance_norm, traits=_T.REAL,
             parameters=(1, 2)),
    Operator("LRN", Kind.NORMALISATION, work=elementwise.lrn, traits=_T.REAL),
    Operator("LayerNormalization", Kind.NORMALISATION, work=elementwise.layer_norm, traits=_T.REAL | _T.ROWS,
             parameters=(1, 2)),
    Operator("LpNormalization", Kind.NORMALISATION, work=elementwise.lp_norm),
    Operator("MeanVarianceNormalization", Kind.NORMALISATION, work=elementwise.mean_variance_norm),
    Operator("RMSNormalization", Kind.NORMALISATION, work=elementwise.rms_norm, traits=_T.REAL | _T.ROWS,
             parameters=(1,)),
    Operator("SimplifiedLayerNormalization", Kind.NORMALISATION, work=elementwise.rms_norm, traits=_T.REAL | _T.ROWS,
             parameters=(1,), results=result_types.rms_norm),
    # softmax
    Operator("Hardmax", Kind.SOFTMAX, work=elementwise.COMPARED, traits=_T.VALUED),
    Operator("LogSoftmax", Kind.SOFTMAX, work=elementwise.log_softmax, traits=_T.ROWS | _T.OVERWRITES),
    Operator("Softmax", Kind.SOFTMAX, work=elementwise.SOFTMAX, traits=_T.ROWS | _T.QUANTISABLE | _T.OVERWRITES),
    # loss
    Operator("NegativeLogLikelihoodLoss", Kind.LOSS, work=elementwise.negative_log_likelihood, shaped_by=_OPERANDS),
    Operator("SoftmaxCrossEntropyLoss", Kind.LOSS, work=elementwise.cross_entropy, shaped_by=_OPERANDS),
    # recurrent
    Operator("GRU", Kind.RECURRENT, work=linear.gru, parameters=(1, 2, 3, 5), deciding=(4,)),
    Operator("LSTM", Kind.RECURRENT, work=linear.lstm, parameters=(1, 2, 3, 5, 6, 7), deciding=(4,)),
    Operator("RNN", Kind.RECURRENT, work=linear.rnn, parameters=(1, 2, 3, 5), deciding=(4,)),
    # attention
    Operator("Attention", Kind.ATTENTION, work=linear.attention, deciding=(6,), caches=((4, 1), (5, 2)),
             roles=((3, MASK),)),
    Operator("LinearAttention", Kind.ATTENTION, work=linear.linear_attention, shaped_by=_OPERANDS),
    Operator("RotaryEmbedding", Kind.ATTENTION, work=linear.rotary_embedding, shaped_by=_OPERANDS,
             roles=((3, POSITIONS),)),
    # resampling
    Operator("AffineGrid", Kind.RESAMPLING, work=linear.affine_grid, deciding=(1,), shaped_by=_OPERANDS),
    Operator("Col2Im", Kind.RESAMPLING, work=elementwise.ADDED, deciding=(1, 2), shaped_by=_OPERANDS),
    Operator("GridSample", Kind.RESAMPLING, work=linear.grid_sample),
    Operator("Resize", Kind.RESAMPLING, work=linear.resize, traits=_T.SHRINKS | _T.REPEATS | _T.QUANTISABLE,
             shaped_by=_OTHERS, deciding=(1, 2, 3)),
    Operator("Upsample", Kind.RESAMPLING, work=linear.resize, traits=_T.REPEATS, shaped_by=_OTHERS,
             deciding=(1,)),
    # transform
    Operator("DFT", Kind.TRANSFORM, work=linear.dft, traits=_T.REAL, deciding=(1, 2), shaped_by=_OPERANDS),
    Operator("STFT", Kind.TRANSFORM, work=linear.stft, traits=_T.REAL, deciding=(1, 3), shaped_by=_OPERANDS),
    # conversion
    Operator("DequantizeLinear", Kind.CONVERSION, work=fused.dequantize, parameters=(0, 1)),
    Operator("DynamicQuantizeLinear", Kind.CONVERSION, work=fused.dynamic_quantize),
    Operator("QuantizeLinear", Kind.CONVERSION, work=fused.quantize, parameters=(1,)),
    # quantised
    Operator("ConvInteger", Kind.QUANTISED, work=linear.conv_integer, parameters=(1,)),
    Operator("MatMulInteger", Kind.QUANTISED, work=linear.matmul_integer, parameters=(0, 1)),
    Operator("QLinearConv", Kind.QUANTISED, work=linear.qlinear_conv, parameters=(1, 3, 4, 6, 8)),
    Operator("QLinearMatMul", Kind.QUANTISED, work=linear.qlinear_matmul, parameters=(0, 1, 3, 4, 6)),
    # generator
    Operator("BlackmanWindow", Kind.GENERATOR, work=linear.window, deciding=(0,), shaped_by=_OPERANDS),
    Operator("Constant", Kind.GENERATOR, work=elementwise.move),
    Operator("ConstantOfShape", Kind.GENERATOR, work=elementwise.move, traits=_T.FILLS, deciding=(0,),
             shaped_by=_OPERANDS),
    Operator("EyeLike", Kind.GENERATOR, work=elementwise.move),
    Operator("HammingWindow", Kind.GENERATOR, work=linear.window, deciding=(0,), shaped_by=_OPERANDS),
    Operator("HannWindow", Kind.GENERATOR, work=linear.window, deciding=(0,), shaped_by=_OPERANDS),
    Operator("MelWeightMatrix", Kind.GENERATOR, deciding=(0, 1, 2, 3, 4), shaped_by=_OPERANDS),
    Operator("OneHot", Kind.GENERATOR, work=elementwise.move, shaped_by=_OTHERS, deciding=(1,)),
    Operator("Range", Kind.GENERATOR, work=elementwise.move, deciding=(0, 1, 2), shaped_by=_OPERANDS),
    # measure
    Operator("Shape", Kind.MEASURE, work=elementwise.move),
    Operator("Size", Kind.MEASURE, work=elementwise.move),
    # random
    Operator("Bernoulli", Kind.RANDOM, work=linear.BERNOULLI, shaped_by=_OPERANDS),
    Operator("Multinomial", Kind.RANDOM, work=elementwise.multinomial, shaped_by=_OPERANDS),
    Operator("RandomNormal", Kind.RANDOM, work=linear.NORMAL, shaped_by=_OPERANDS),
    Operator("RandomNormalLike", Kind.RANDOM, work=linear.NORMAL, shaped_by=_OPERANDS),
    Operator("RandomUniform", Kind.RANDOM, work=linear.UNIFORM, shaped_by=_OPERANDS),
    Operator("RandomUniformLike", Kind.RANDOM, work=linear.UNIFORM, shaped_by=_OPERANDS),
    # control
    Operator("If", Kind.CONTROL, work=elementwise.bare, traits=_T.VALUED, shaped_by=_CONTENTS, course=1),
    Operator("Loop", Kind.CONTROL, work=elementwise.bare, shaped_by=_CONTENTS, deciding=(0,), course=2),
    Operator("Scan", Kind.CONTROL, shaped_by=_CONTENTS),
    Operator("SequenceMap", Kind.CONTROL, shaped_by=_OPERANDS),
    # sequence
    Operator("ConcatFromSequence", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("Optional", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("OptionalGetElement", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("OptionalHasElement", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SequenceAt", Kind.SEQUENCE, shaped_by=_CONTENTS, deciding=(1,)),
    Operator("SequenceConstruct", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SequenceEmpty", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SequenceErase", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SequenceInsert", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SequenceLength", Kind.SEQUENCE, shaped_by=_OPERANDS),
    Operator("SplitToSequence", Kind.SEQUENCE, deciding=(1,), shaped_by=_OPERANDS),
    # text
    Operator("ImageDecoder", Kind.TEXT, shaped_by=_OPERANDS),
    Operator("RegexFullMatch", Kind.TEXT, shaped_by=_OPERANDS),
    Operator("StringConcat", Kind.TEXT, shaped_by=_OPERANDS),
    Operator("StringNormalizer", Kind.TEXT, shaped_by=_OPERANDS),
    Operator("StringSplit", Kind.TEXT, shaped_by=_CONTENTS),
    Operator("TfIdfVectorizer", Kind.TEXT, shaped_by=_OPERANDS),
    # elementwise, com.microsoft
    Operator("BiasAdd", Kind.ELEMENTWISE, each=("x + bias + skip", _ADD + _ADD), parameters=(1,), domain=MICROSOFT),
    Operator("BiasGelu", Kind.ELEMENTWISE, each=("gelu(a + b)", _ADD + _ADD + 3 * _MUL + _EXP), parameters=(1,),
             results=result_types.as_input, domain=MICROSOFT),
    Operator("FastGelu", Kind.ELEMENTWISE, each=("0.5 x (1 + tanh(c (x + d x x x)))", _ADD + _ADD + 6 * _MUL + _EXP),
             work=fused.fast_gelu, parameters=(1,), results=result_types.as_input, domain=MICROSOFT),
    Operator("Gelu", Kind.ELEMENTWISE, each=("0.5 x (1 + erf(x / sqrt 2))", _ADD + 3 * _MUL + _EXP),
             results=result_types.as_input, domain=MICROSOFT),
    Operator("QuickGelu", Kind.ELEMENTWISE, each=("x sigmoid(alpha x)", _MUL + _MUL + _EXP),
             results=result_types.as_input, domain=MICROSOFT),
    # view, com.microsoft
    Operator("ExpandDims", Kind.VIEW, work=elementwise.move, shaped_by=_OPERANDS, domain=MICROSOFT),
    # move, com.microsoft
    Operator("GatherND", Kind.MOVE, work=elementwise.move, traits=_T.SELECTS, domain=MICROSOFT),
    Operator("Pad", Kind.MOVE, work=elementwise.move, shaped_by=_OTHERS, domain=MICROSOFT),
    Operator("Trilu", Kind.MOVE, work=elementwise.move, domain=MICROSOFT),
    # convolution, com.microsoft
    Operator("FusedConv", Kind.CONVOLUTION, work=fused.fused_conv, parameters=(1, 2), domain=MICROSOFT),
    Operator("NhwcConv", Kind.CONVOLUTION, shaped_by=_OPERANDS, parameters=(1, 2), domain=MICROSOFT),
    Operator("NhwcFusedConv", Kind.CONVOLUTION, work=fused.fused_conv, shaped_by=_OPERANDS, parameters=(1, 2),
             domain=MICROSOFT),
    # product, com.microsoft
    Operator("FusedGemm", Kind.PRODUCT, work=fused.fused_gemm, parameters=(0, 1, 2), domain=MICROSOFT),
    Operator("FusedMatMul", Kind.PRODUCT, work=linear.fused_matmul, traits=_T.REAL, parameters=(0, 1),
             results=result_types.fused_matmul, domain=MICROSOFT),
    Operator("TransposeMatMul", Kind.PRODUCT, work=linear.fused_matmul, shaped_by=_OPERANDS, parameters=(0, 1),
             results=result_types.fused_matmul, domain=MICROSOFT),
    # pool, com.microsoft
    Operator("NhwcMaxPool", Kind.POOL, work=linear.max_pool, shaped_by=_OPERANDS, domain=MICROSOFT),
    # normalisation, com.microsoft
    Operator("EmbedLayerNormalization", Kind.NORMALISATION, work=fused.embed_layer_norm, shaped_by=_OPERANDS,
             parameters=(2, 3, 4, 5, 6), roles=((0, ROWS), (8, POSITIONS)), domain=MICROSOFT),
    Operator("GroupNorm", Kind.NORMALISATION, work=fused.microsoft_group_norm, shaped_by=_OPERANDS,
             parameters=(1, 2), domain=MICROSOFT),
    Operator("SkipGroupNorm", Kind.NORMALISATION, shaped_by=_OPERANDS, parameters=(1, 2, 4), domain=MICROSOFT),
    Operator("SkipLayerNormalization", Kind.NORMALISATION, work=fused.skip_layer_norm, traits=_T.ROWS,
             parameters=(2, 3, 4), results=result_types.skip_norm, domain=MICROSOFT),
    Operator("SkipSimplifiedLayerNormalization", Kind.NORMALISATION, work=fused.skip_rms_norm, traits=_T.ROWS,
             parameters=(2, 3), results=result_types.skip_norm, domain=MICROSOFT),
    # softmax, com.microsoft
    Operator("BiasSoftmax", Kind.SOFTMAX, work=fused.bias_softmax, shaped_by=_OPERANDS,
             results=result_types.as_input, domain=MICROSOFT),
    # recurrent, com.microsoft
    Operator("DynamicQuantizeLSTM", Kind.RECURRENT, work=fused.dynamic_quantize_lstm, shaped_by=_OPERANDS,
             parameters=(1, 2, 3, 7, 8, 10), domain=MICROSOFT),
    # attention, com.microsoft
    Operator("Attention", Kind.ATTENTION, work=linear.fused_attention, parameters=(1, 2),
             results=result_types.packed_attention, caches=((4, 1),), roles=((3, MASK),), domain=MICROSOFT),
    Operator("GroupQueryAttention", Kind.ATTENTION, work=linear.group_query_attention, shaped_by=_OPERANDS,
             results=result_types.group_query_attention, traits=_T.IN_PLACE, caches=((3, 1), (4, 2)),
             roles=((5, LAST), (6, TOTAL), (9, POSITIONS), (10, MASK)), domain=MICROSOFT),
    Operator("MultiHeadAttention", Kind.ATTENTION, work=linear.multi_head_attention, shaped_by=_OPERANDS,
             parameters=(3,), results=result_types.multi_head_attention, caches=((6, 1), (7, 2)),
             roles=((4, MASK), (5, MASK)), domain=MICROSOFT),
    Operator("RotaryEmbedding", Kind.ATTENTION, work=linear.rotary_embedding, shaped_by=_OPERANDS,
             results=result_types.as_input, roles=((1, POSITIONS),), domain=MICROSOFT),
    # experts, com.microsoft: a router chooses them, by its operands
    Operator("MoE", Kind(0), traits=_T.VALUED, shaped_by=_OPERANDS, data=None,
             results=result_types.as_input, domain=MICROSOFT),
    Operator("QMoE", Kind(0), traits=_T.VALUED, shaped_by=_OPERANDS, data=None,
             results=result_types.as_input, domain=MICROSOFT),
    # conversion, com.microsoft
    Operator("DequantizeLinear", Kind.CONVERSION, work=fused.dequantize, parameters=(0, 1), domain=MICROSOFT),
    Operator("QuantizeLinear", Kind.CONVERSION, work=fused.quantize, parameters=(1,), domain=MICROSOFT),
    # quantised, com.microsoft
    Operator("DynamicQuantizeMatMul", Kind.QUANTISED, work=fused.dynamic_quantize_matmul, parameters=(1, 2, 4),
             domain=MICROSOFT),
    Operator("GatherBlockQuantized", Kind.QUANTISED,
             work=elementwise.per_element("(x - zero_point) scale", fused.DEQUANTIZE), shaped_by=_OPERANDS,
             parameters=(0, 2), results=result_types.gather_block_quantized, roles=((1, ROWS),), domain=MICROSOFT),
    Operator("MatMulBnb4", Kind.QUANTISED, work=fused.matmul_n_bits, shaped_by=_OPERANDS, parameters=(1, 2),
             domain=MICROSOFT),
    Operator("MatMulInteger16", Kind.QUANTISED, work=linear.matmul_integer, shaped_by=_OPERANDS,
             parameters=(0, 1), domain=MICROSOFT),
    Operator("MatMulIntegerToFloat", Kind.QUANTISED, work=fused.matmul_integer_to_float, parameters=(1, 2, 3, 6),
             domain=MICROSOFT),
    Operator("MatMulNBits", Kind.QUANTISED, work=fused.matmul_n_bits, parameters=(1, 2),
             results=result_types.matmul_n_bits, domain=MICROSOFT),
    Operator("QAttention", Kind.QUANTISED, work=fused.quantized_attention, parameters=(1, 2, 3, 4), domain=MICROSOFT),
    Operator("QGemm", Kind.QUANTISED, work=fused.quantized_gemm, shaped_by=_OPERANDS,
             parameters=(1, 3, 4, 6, 7), domain=MICROSOFT),
    Operator("QLinearAdd", Kind.QUANTISED, work=fused.requantized("a + b", fused.DEQUANTIZE + _ADD),
             parameters=(1, 4, 6), domain=MICROSOFT),
    Operator("QLinearAveragePool", Kind.QUANTISED, work=fused.quantized_average_pool, parameters=(1, 3),
             domain=MICROSOFT),
    Operator("QLinearConcat", Kind.QUANTISED, work=fused.requantized("x", Cost()), parameters=(0,), domain=MICROSOFT),
    Operator("QLinearConv", Kind.QUANTISED, work=linear.qlinear_conv, parameters=(1, 3, 4, 6, 8), domain=MICROSOFT),
    Operator("QLinearGlobalAveragePool", Kind.QUANTISED, work=fused.MEAN, parameters=(1, 3), domain=MICROSOFT),
    Operator("QLinearLeakyRelu", Kind.QUANTISED, work=fused.requantized("x if x >= 0 else alpha x", _CMP + _MUL),
             parameters=(1, 3), domain=MICROSOFT),
    Operator("QLinearMul", Kind.QUANTISED, work=fused.requantized("a b", fused.DEQUANTIZE + _MUL),
             parameters=(1, 4, 6), domain=MICROSOFT),
    Operator("QLinearReduceMean", Kind.QUANTISED, work=fused.MEAN, shaped_by=_OPERANDS, parameters=(1, 3),
             domain=MICROSOFT),
    Operator("QLinearSigmoid", Kind.QUANTISED, work=fused.requantized("1 / (1 + exp(-x))", _EXP), parameters=(1, 3),
             domain=MICROSOFT),
    Operator("QLinearSoftmax", Kind.QUANTISED,
             work=fused.requantized("exp(x - max) / sum", _CMP + _ADD + _ADD + _EXP + _DIV), parameters=(1, 3),
             domain=MICROSOFT),
    Operator("QLinearWhere", Kind.QUANTISED, work=fused.requantized("a if condition else b", _CMP),
             shaped_by=_OPERANDS, parameters=(2, 5, 7), domain=MICROSOFT),
    # move, com.microsoft.nchwc
    Operator("ReorderInput", Kind.MOVE, work=elementwise.move, shaped_by=_OPERANDS, domain=BLOCKED),
    Operator("ReorderOutput", Kind.MOVE, work=elementwise.move, shaped_by=_OPERANDS, domain=BLOCKED),
    # convolution, com.microsoft.nchwc
    Operator("Conv", Kind.CONVOLUTION, work=fused.fused_conv, traits=_T.REAL | _T.QUANTISABLE, parameters=(1, 2),
             domain=BLOCKED),
    # pool, com.microsoft.nchwc
    Operator("AveragePool", Kind.POOL, work=linear.average_pool,
             traits=_T.REAL | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE, domain=BLOCKED),
    Operator("MaxPool", Kind.POOL, work=linear.max_pool, traits=_T.MAXIMUM | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE,
             domain=BLOCKED),
    # global pool, com.microsoft.nchwc
    Operator("GlobalAveragePool", Kind.GLOBAL_POOL, work=elementwise.AVERAGED,
             traits=_T.REAL | _T.POSITIVE | _T.SHRINKS | _T.QUANTISABLE, domain=BLOCKED),
    Operator("GlobalMaxPool", Kind.GLOBAL_POOL, work=elementwise.COMPARED, traits=_T.MAXIMUM | _T.SHRINKS,
             domain=BLOCKED),
    # resampling, com.microsoft.nchwc
    Operator("Upsample", Kind.RESAMPLING, work=linear.resize, traits=_T.REPEATS, shaped_by=_OTHERS,
             domain=BLOCKED),
)
# fmt: on

OPERATORS = {(row.domain, row.name): row for row in _ROWS}
"""Rows by domain and name."""


def operator_of(node: onnx.NodeProto) -> Operator:
    """Return the row of a node's operator, or ``UNKNOWN``."""
    return OPERATORS.get((plain_domain(node.domain), node.op_type), UNKNOWN)


@functools.cache
def named(kind: Kind, traits: Trait = _NONE) -> frozenset[str]:
    """Return the names, without domain, of the operators of some kinds that have all of some traits."""
    return frozenset(row.name for row in _ROWS if row.kind & kind and traits in row.traits)


@functools.cache
def having(traits: Trait) -> frozenset[str]:
    """Return the names, without domain, of the operators that have one of some traits."""
    return frozenset(row.name for row in _ROWS if row.traits & traits)


def course_slots(domain: str, op_type: str) -> int:
    """Return the number of first slots that decide which body of an operator runs, or how often."""
    row = OPERATORS.get((domain, op_type))
    return 0 if row is None else row.course


@functools.cache
def shaped_by(what: ShapedBy) -> frozenset[str]:
    """Return the names, without domain, of the operators with output shapes that depend on some data."""
    return frozenset(row.name for row in _ROWS if row.shaped_by is what)


ELEMENTWISE, VIEWS, MOVES = named(Kind.ELEMENTWISE), named(Kind.VIEW), named(Kind.MOVE | Kind.VIEW)
REDUCTIONS, RANDOM, BODIES = named(Kind.REDUCTION), named(Kind.RANDOM), named(Kind.CONTROL)
RECURRENT = named(Kind.RECURRENT)
PRODUCTS, MULTIPLYING = named(Kind.PRODUCT, Trait.REAL), named(Kind.PRODUCT | Kind.CONVOLUTION, Trait.REAL)
UNMOVED = VIEWS | having(Trait.UNMOVED)
"""Operators that a runtime may execute without moving data."""

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
"""Conversions from quantised values to real ones, and back, around an operator of a quantised model (QDQ)."""

"""Work of recurrent operators, unrolled over all time steps.

T steps, batch B, input width I, hidden width H, D directions; gates per cell: LSTM 4, GRU 3, RNN 1. Padding by
``sequence_lens`` is not taken off: the shapes decide.
"""

from __future__ import annotations

import math

from ..cost import Cost
from .call import Call, Formula, UnknownCostError
from .elementwise import times

__all__ = ["FORMULAS", "recurrent"]


def recurrent(call: Call, gates: int, cell: Cost, *, bias: int = 3) -> Cost:
    """``macs = D T B gates H (I + H)``; ``cell`` per hidden unit and step; both biases 2 additions per gate."""
    data, weights = call.input(0), call.input(1)
    if len(data.shape) != 3 or len(weights.shape) != 3:
        raise UnknownCostError(f"{call.node.op_type} of rank {len(data.shape)}")
    steps = math.prod(data.shape[:2])  # T B in either layout
    directions, rows, width = weights.shape
    hidden = rows // gates
    units = directions * steps * hidden
    biases = 2 * gates * units if call.has(bias) else 0
    work = times(cell, units)
    return work + Cost(macs=units * gates * (width + hidden), additions=biases + units * gates)


def lstm(call: Call) -> Cost:
    """Macs ``D T B 4H (I + H)``; per unit 3 sigmoids, 2 tanh, 3 multiplications, 1 addition, 4 to join the products.

    ``c = f c + i g``, ``h = o tanh(c)``; peepholes add 3 multiplications and 3 additions, biases 8 additions.
    """
    peepholes = 3 if call.has(7) else 0
    cell = Cost(exponentials=5, multiplications=3 + peepholes, additions=1 + peepholes)
    return recurrent(call, 4, cell)


def gru(call: Call) -> Cost:
    """Macs ``D T B 3H (I + H)``; per unit 2 sigmoids, 1 tanh, 3 multiplications, 2 additions, 3 to join.

    ``h = (1 - z) n + z h`` with the reset gate's product; biases 6 additions.
    """
    return recurrent(call, 3, Cost(exponentials=3, multiplications=3, additions=2))


def rnn(call: Call) -> Cost:
    """Macs ``D T B H (I + H)``; per unit 1 tanh and 1 addition to join; biases 2 additions."""
    return recurrent(call, 1, Cost(exponentials=1))


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "GRU"): gru,
    ("", "LSTM"): lstm,
    ("", "RNN"): rnn,
}

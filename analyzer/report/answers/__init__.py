"""What commands answer of reports and estimates: rows with the documented keys (docs/cli.md), and tables."""

from .decomposed import generated
from .estimates import estimated
from .missed import missed
from .runs import measured, ran

__all__ = ["estimated", "generated", "measured", "missed", "ran"]

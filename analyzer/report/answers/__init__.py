"""What commands answer of reports and estimates: rows with the documented keys (docs/cli.md), and tables."""

from .decomposed import generate_answer
from .estimates import estimates_answer
from .missed import analyze_answer
from .runs import measure_answer, run_answer

__all__ = ["analyze_answer", "estimates_answer", "generate_answer", "measure_answer", "run_answer"]

"""Whether two latencies differ: sides, their differences, and what the machine did between them."""

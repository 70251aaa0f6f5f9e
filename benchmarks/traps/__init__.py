"""Models on which a tempting rewrite is wrong, written without knowledge of the prover; see ``trap.py``."""

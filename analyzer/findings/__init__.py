"""What a model misses: findings, the analyses that make them, and proofs."""

"""Missed optimisations of models: findings, the analyses that make them, and proofs."""

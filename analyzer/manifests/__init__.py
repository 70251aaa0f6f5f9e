"""Manifests: one run of a suite as a statement for others, and its reproduction."""

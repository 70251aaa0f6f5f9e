"""Analyses of the precision that operators are computed in, where a model asks for another one."""

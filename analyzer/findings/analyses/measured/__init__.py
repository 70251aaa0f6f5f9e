"""Analyses that hold a model, or its bricks, against other measurements that are stored of them."""

"""Control flow of models: what was said of its course, and models that take it whatever their inputs are.

What finds a course by itself, and writes it out, stands in ``bricks.graph``: that reads constants.
"""

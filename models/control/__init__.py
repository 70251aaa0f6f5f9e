"""Control flow of models: what was said of its course, and the same model without it.

What reads constants to find a course by itself stands in ``bricks.graph.control``; here is what works on the file.
"""

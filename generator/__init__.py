"""Networks of bricks, backends, the isolated worker, the timing protocol and the resumable run.

Nothing is exported here: ``dlbricks`` itself offers ``generate``, ``run`` and ``measure``, and the worker, which
imports this package too, opens neither a database nor the zoo.
"""

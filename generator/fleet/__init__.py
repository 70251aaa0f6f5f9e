"""A fleet: measurement campaigns over many machines, queued in PostgreSQL together with the results.

``campaign`` reads a campaign's file into cells (``cell``). ``planning`` puts them into the queue of each node, and
``job_worker`` takes one at a time. Suites and lock files travel as blobs. Measuring on one machine needs no fleet.
"""

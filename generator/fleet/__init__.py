"""A fleet: what a campaign measures on which machine, as jobs in a queue inside PostgreSQL, beside the results.

A campaign's file is read (``campaign``) into cells (``cell``), which ``planning`` puts into the queue of each node;
there ``worker`` takes one at a time. Suites and lock files travel as blobs. Whoever measures on one machine needs none
of it.
"""

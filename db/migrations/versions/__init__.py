"""Revisions, oldest first; ``db.schema.REVISIONS`` lists them."""

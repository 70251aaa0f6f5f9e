"""What every test relies on."""

from __future__ import annotations

import os

# Tests that measure take the machine's lock; those that run at the same time wait for it.
os.environ.setdefault("DLBRICKS_LOCK_WAIT", "300")
# A test that forgets --db must not write into the user's database.
os.environ.pop("DLBRICKS_DB", None)

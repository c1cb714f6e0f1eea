"""Settings of the whole suite. Fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a shared machine may take its time over any one example. In CI the examples are the same in every run.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

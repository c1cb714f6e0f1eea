"""Both paths to a client, as for the kernel."""

from __future__ import annotations

from tests.unit.kernel.conftest import wrap as wrap

"""The gateway of `make run` for agents, and the one whose callers have keys."""

from __future__ import annotations

from tests.acceptance.e2e.conftest import gateway as gateway
from tests.acceptance.libraries.conftest import keyed as keyed

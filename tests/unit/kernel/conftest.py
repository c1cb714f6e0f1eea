"""Both paths to a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kernel.asking import plain_asgi


@pytest.fixture(params=["direct", "asgi"])
def wrap(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return plain_asgi if request.param == "asgi" else lambda app: app

"""The error that a call raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

import pytest

from gateway.core.errors import GatewayError
from gateway.core.events import Event, Failed

P = ParamSpec("P")


def raised(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> GatewayError:
    """Fails unless the call raises a GatewayError."""
    with pytest.raises(GatewayError) as caught:
        call(*args, **kwargs)
    return caught.value


def failed(events: Sequence[Event]) -> GatewayError:
    """The error that a reply ends with."""
    last = events[-1]
    assert isinstance(last, Failed)
    return last.error

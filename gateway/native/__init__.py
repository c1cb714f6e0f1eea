"""The native relay, which an installation has if it was built where Cython and a C compiler are.

BUILT  whether this one has it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.wire.openai.streams.passthrough import PassthroughLane

if TYPE_CHECKING:
    from gateway.core.figures import Histogram

try:
    from gateway.native.relay import Relay
except ImportError:
    BUILT = False
else:
    BUILT = True


def relay_natively(exchange: Any, lane: object, pump: Any, gaps: Histogram, write: Any, cycle: Any) -> None:
    """From now on ordinary chunks of this stream pass by `pump` and `lane`, with the same result. Nothing changes if
    the relay is not built or cannot relay this lane, or if the exchange has ended or is watched, as the playground's
    is. The arguments are `Relay`'s."""
    source = getattr(exchange, "source", None)
    if BUILT and type(lane) is PassthroughLane and isinstance(source, asyncio.BufferedProtocol):
        Relay(exchange, lane, pump, gaps, write, cycle)

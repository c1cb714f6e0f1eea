"""The native relay, which an installation has if it was built where Cython and a C compiler are.

BUILT  whether this one has it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.translation.lanes import EventLane
from gateway.wire.openai.streams.passthrough import PassthroughLane
from gateway.wire.openai.streams.reading import Reader

if TYPE_CHECKING:
    from gateway.core.figures import Histogram

try:
    from gateway.native.relay import SameWire, Translated
except ImportError:
    BUILT = False
else:
    BUILT = True


def relay_natively(exchange: Any, lane: object, pump: Any, gaps: Histogram, write: Any, cycle: Any) -> None:
    """From now on ordinary chunks of this stream pass by `pump` and `lane`, with the same result. Nothing changes if
    the relay is not built or cannot relay this lane, or if the exchange has ended or is watched, as the playground's
    is. The arguments are those of either relay."""
    source = getattr(exchange, "source", None)
    if not BUILT or not isinstance(source, asyncio.BufferedProtocol):
        return
    if type(lane) is PassthroughLane:
        SameWire(exchange, lane, pump, gaps, write, cycle)
    elif type(lane) is EventLane and isinstance(lane.reader, Reader):
        Translated(exchange, lane, pump, gaps, write, cycle)

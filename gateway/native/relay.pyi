from collections.abc import Callable

from gateway.core.figures import Histogram
from gateway.translation.lanes import EventLane
from gateway.wire.openai.streams.passthrough import PassthroughLane

class SameWire:
    def __init__(
        self,
        exchange: object,
        lane: PassthroughLane,
        pump: object,
        gaps: Histogram,
        write: Callable[[bytes], None],
        cycle: object,
    ) -> None: ...

class Translated:
    def __init__(
        self,
        exchange: object,
        lane: EventLane,
        pump: object,
        gaps: Histogram,
        write: Callable[[bytes], None],
        cycle: object,
    ) -> None: ...

from collections.abc import Callable

from gateway.core.figures import Histogram
from gateway.wire.openai.streams.passthrough import PassthroughLane

class Relay:
    def __init__(
        self,
        exchange: object,
        lane: PassthroughLane,
        pump: object,
        gaps: Histogram,
        write: Callable[[bytes], None],
        cycle: object,
    ) -> None: ...

"""The interfaces between packages: what a dialect, a backend, a lane, a transport must offer.

The kernel names only these. Nothing here does I/O.
"""

from __future__ import annotations

from gateway.core.continuation import Partial
from gateway.core.ports.account import Charge, Observer, RateLimiter, RequestRecord, RequestTrace, Tracer
from gateway.core.ports.backend import BEYOND, UNKNOWN, Ask, Backend, Capabilities, Facts, Gauges, Handover, Resumption
from gateway.core.ports.client import Client, CountedConnection, OpensSockets, Socket, SocketSession
from gateway.core.ports.dialect import (
    Dialect,
    Lane,
    Passthrough,
    ServerTools,
    ServerToolWriter,
    Settings,
    SocketWire,
    StreamReader,
    StreamWriter,
)
from gateway.core.ports.fleet import BodySink, Deadlines, Exchange, Moves, Pool, Transport, WorkerHandle, WorkerPool
from gateway.core.ports.stored import ResponseStore, StoredTexts

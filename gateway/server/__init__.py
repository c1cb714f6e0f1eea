"""The HTTP server: uvicorn's life cycle around a protocol of our own, which is safe at its edge and quick.

uvicorn's own protocols have no header or body timeout and no cap on header size or count. They accept a missing or
doubled Host, and read pipelined requests without a bound (measured on uvicorn 0.54, httptools 0.9). `HttpProtocol`
mends all of these. It puts a `core.ports.Client` into `scope["extensions"]["dragoman"]`: a handler may learn at
once that its client left, and write to its connection without a task switch. A handler that ignores it gets plain
ASGI.
"""

from gateway.server.cycle import EXTENSION, RequestCycle
from gateway.server.descriptors import fitting_connections
from gateway.server.protocol import HttpProtocol
from gateway.server.refusal import HttpError, RefusalHeaders
from gateway.server.serving import OperationsListener, Server

"""The HTTP server: uvicorn with httptools, made safe at its edge and given one seam for speed.

uvicorn alone has no header or body timeout, no cap on header size or count, and accepts a missing or doubled Host
(measured on uvicorn 0.54, httptools 0.9). `EdgeProtocol` adds those. The seam is `Downstream`, put into
`scope["extensions"]["dragoman"]`: a handler may learn at once that its client left, and write to its connection without
a task switch. A handler that ignores it gets plain ASGI.
"""

from gateway.server.connection import EXTENSION, Downstream
from gateway.server.edge import Edge, HttpError, Refused
from gateway.server.protocol import EdgeProtocol
from gateway.server.serving import Server, Side, server

__all__ = ["EXTENSION", "Downstream", "Edge", "EdgeProtocol", "HttpError", "Refused", "Server", "Side", "server"]

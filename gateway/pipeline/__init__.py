"""One request from the client to a worker and back.

run.py          the steps of one request, top to bottom; `Endpoint` is what routes lead to
runtime.py      what the requests of one configuration share, and which are under way
models.py       the models: which one a request means
detours.py      other models: fallback, split
mirror.py       copies for another model, whose replies are dropped
hedge.py        a second worker where the first is late
quarantine.py   requests of which workers died
deadlines.py    how long a request may take
request_ids.py  ids of requests, for clients and for workers
outgoing.py     what a worker is sent
attempts.py     the attempts: pick a worker, send, learn, retry
reply.py        what the client has seen: headers, keep-alives, whether anything went out; respond, refuse
pump.py         a worker's stream on its way through a lane to the client
client.py       the client's connection: plain ASGI (the reference) and direct
offload.py      long steps of large requests, in a thread
"""

from gateway.pipeline.client import Receive, Scope, Send
from gateway.pipeline.models import ServedModel
from gateway.pipeline.request_ids import request_id
from gateway.pipeline.run import Endpoint
from gateway.pipeline.runtime import Running, Runtime

__all__ = ["Endpoint", "Receive", "Running", "Runtime", "Scope", "Send", "ServedModel", "request_id"]

"""The way of one request, from the client to a worker and back. It names no optional feature.

feature.py      the steps of the way, and what a feature may wrap
way.py          the steps of a configuration, each in the features that wrap it
serving.py      `Endpoint`, to which routes lead; serves one request, or refuses it
reading.py      who calls, the body, the operation, and the model that is meant
bodies.py       compressed bodies
asking.py       a model answers, or another one in its place; the request is written for its workers
other_models.py  which other models may answer: fallbacks, and splits of the traffic
attempts.py     one worker after another is asked
visit.py        one worker's part in a request: the only place from which a pool learns outcomes
delivery.py     how the reply passes to the client, by operation
pump.py         a stream on its way through a lane to the client
call.py         the request under way
runtime.py      what the requests of one configuration share, and which are under way
models.py       the models: which one a request means
outgoing.py     what a worker is sent
reply.py        what the client has seen: headers, keep-alives, whether anything went out; respond, refuse
client.py       the client's connection: the server's own, or by plain ASGI; reads a body
internal_request.py  requests that the gateway makes of itself: messages of sockets, lines of batches
deadlines.py    how long a request may take
request_ids.py  ids of requests, for clients and for workers
"""

from gateway.kernel.client import Application, Receive, Scope, Send, send_whole
from gateway.kernel.models import ServedModel
from gateway.kernel.request_ids import request_id
from gateway.kernel.runtime import ActiveRequests, Budgets, Runtime
from gateway.kernel.serving import Endpoint

"""One request from the client to a worker and back.

run.py          the steps of one request, top to bottom; `Endpoint` is what routes lead to
call.py         the material of one request, with one owner
runtime.py      what the requests of one configuration share, and which are under way
models.py       the models: which one a request means
other_models.py  fallback and split
attempts.py     the attempts: pick a worker, send, learn, retry; strategies.py says which kind a request needs:
hedge.py        a second worker if the first is late
prefill.py      one worker computes the prompt, another one generates
media.py        text of sound, sound and images, which pass as they came
visit.py        one worker's part in a request: the only place from which a pool learns outcomes
watch.py        the steps of requests, and what looks at them:
tracing.py      spans, the log at level debug, headers that explain
optional.py     limits, the response store, the log of prompts
caps.py         what a key holds open beyond its bounds
end_users.py    whom clients name as theirs
pricing.py      what a request costs
guards.py       services that see requests and replies
shedding.py     refuses requests while the event loop is late
quarantine.py   requests of which workers died
mirror.py       copies for another model, whose replies are dropped
prompt_tokens.py  a stage: the tokens of a prompt, for the pick
server_tools.py  rounds of attempts, between which the gateway runs tools
moving.py       a request that leaves its worker before its first token
going_on.py     a stream that another worker takes up
deadlines.py    how long a request may take
request_ids.py  ids of requests, for clients and for workers
outgoing.py     what a worker is sent
reply.py        what the client has seen: headers, keep-alives, whether anything went out; respond, refuse
pump.py         a worker's stream on its way through a lane to the client
response_store.py  what clients refer to later
uploads.py      bodies with files, on their way into a temporary file
client.py       the client's connection: plain ASGI (the reference) and direct
sockets.py      web sockets: messages as requests
inner.py        requests that the gateway sends itself: messages of sockets, lines of batches
timing.py       times for the record
offload.py      long steps of large requests, in a thread
"""

from gateway.pipeline.client import Application, Receive, Scope, Send, send_whole
from gateway.pipeline.models import ServedModel
from gateway.pipeline.request_ids import request_id
from gateway.pipeline.run import Endpoint, RequestHandler
from gateway.pipeline.runtime import ActiveRequests, Budgets, Runtime
from gateway.pipeline.sockets import Sockets

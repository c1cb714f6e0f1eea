"""Batches: requests that clients hand in together and fetch later, answered on capacity that is idle.

service.py   what a gateway has of it all; nothing here is imported where batches are off
api_call.py  a call of the APIs below: a request that no model answers
apis.py      what these APIs share
files.py     OpenAI's files
openai.py    OpenAI's batches
anthropic.py  Anthropic's Message Batches; splitting.py: the requests in the body of one
state.py     what Redis holds: descriptions, how far batches are, who runs them
storage.py   the bytes: disk.py in a folder that gateways share, bucket.py in a bucket
overview.py  all of them, for admins
run.py       a batch under way; notes.py: what was done of it
line_call.py  one line as a request; lines.py: what clients write of it and read of its result
"""

from gateway.features.batches.service import CALLED, ROUTES, Batching
from gateway.features.batches.state import BatchStore

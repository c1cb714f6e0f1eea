"""Batches: requests that clients hand in together and fetch later, answered on capacity that is idle.

service.py   what a gateway has of it all; nothing here is imported where batches are off
api_call.py  a call of the APIs below: a request that no model answers
files.py     OpenAI's files
state.py     what Redis holds: descriptions, how far batches are, who runs them
disk.py      the bytes, in a folder that gateways share
"""

from gateway.batches.service import ROUTES, Batching
from gateway.batches.state import BatchStore

__all__ = ["ROUTES", "BatchStore", "Batching"]

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

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.core.key_kind import KeyKind
from gateway.features import Built, Parts, Routes

if TYPE_CHECKING:
    from gateway.features.batches.service import Batching


def client_routes(config: Config) -> Routes:
    if config.batches is None:
        return {}
    from gateway.features.batches.service import ROUTES  # not imported where they are off

    return ROUTES


def key_kinds() -> Sequence[KeyKind]:
    from gateway.features.batches.state import KEY_KINDS  # not imported where they are off

    return KEY_KINDS


def build(parts: Parts) -> Built | None:
    """The service stays over reloads while its options do."""
    options, redis = parts.config.batches, parts.config.redis
    if options is None or redis is None:
        return None
    from gateway.features.batches.service import Batching  # not imported where they are off

    batching: Batching | None = parts.earlier_services.get("batches")
    if batching is None or (batching.options, batching.redis) != (options, redis):

        def count(api: str, result: str, lines: int) -> None:
            parts.metrics.batch_lines.labels(api, result).inc(lines)

        batching = Batching(options, redis, parts.in_force, count, parts.log.event)
    for api in ("openai", "anthropic"):  # an alert needs to see it begin
        parts.metrics.batch_lines.labels(api, "expired")
    parts.offers.batches = batching.overview
    return Built(service=batching, endpoint=batching.endpoint, start=batching.start, drain=batching.drain)

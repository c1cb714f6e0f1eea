"""httpx as the transport to workers: the tests of `Pooled` that hold for any transport, over HTTP/1.1."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport.by_httpx import ByHttpx
from tests.unit.transport import test_framing as framing
from tests.unit.transport.conftest import PATIENCE, MakeClient, Serve, once
from tests.unit.transport.test_cancel import (  # noqa: F401
    test_before_the_head,
    test_close_tells_the_worker_at_once_and_is_idempotent,
    test_while_connecting,
    test_while_reading,
    test_while_writing,
)
from tests.unit.transport.test_deadlines import (  # noqa: F401
    test_connect,
    test_connect_includes_tls,
    test_first_byte,
    test_idle_between_blocks,
    test_idle_does_not_run_while_we_are_the_ones_who_pause,
    test_later_deadlines_do_not_linger,
    test_silence_after_a_pause_is_silence_again,
)
from tests.unit.transport.test_flow import (  # noqa: F401
    test_a_reader_who_does_not_read_stops_the_worker,
    test_a_sink_that_raises,
    test_push,
    test_push_of_a_broken_body,
    test_resume_from_within_a_block,
)
from tests.unit.transport.test_framing import test_body_over_the_limit  # noqa: F401
from tests.unit.transport.test_requests import (  # noqa: F401
    test_a_worker_that_refuses,
    test_a_worker_without_an_address,
    test_addresses_that_are_none,
    test_no_worker_is_blamed_when_no_descriptor_is_left,
    test_nothing_is_sent_of_what_could_forge_a_line,
)
from tests.unit.transport.test_reuse import (  # noqa: F401
    test_a_worker_that_has_left_may_come_back,
    test_a_worker_that_leaves_while_a_request_connects_serves_it,
    test_addresses_do_not_share,
    test_closed_by_the_worker_while_idle,
    test_fresh_connection_is_not_retried,
    test_idle_connection_expires,
    test_no_more_idle_connections_than_allowed,
    test_no_retry_after_a_timeout,
    test_nothing_is_kept_of_a_worker_that_has_left_once_its_requests_have_ended,
    test_one_connection_for_many_requests,
    test_stale_connection_is_retried_on_a_fresh_one,
    test_stray_bytes_while_idle,
)
from tests.unit.transport.test_silence import (  # noqa: F401
    test_a_head_is_not_progress_and_a_piece_of_the_body_is,
    test_what_a_worker_does_not_owe,
)


@pytest_asyncio.fixture
async def pooled() -> AsyncIterator[MakeClient]:
    """As that of `Pooled`."""
    made: list[ByHttpx] = []

    def make(**arguments: Any) -> ByHttpx:
        made.append(ByHttpx(ssl.create_default_context(), **arguments))
        return made[-1]

    yield make
    for client in made:
        await asyncio.wait_for(client.close(), PATIENCE)
        assert client.open == client.idle == 0


@pytest.mark.parametrize("turns", range(5))
async def test_a_reader_pauses_as_the_time_runs_out(turns: int, serve: Serve, pooled: MakeClient) -> None:
    """turns: of the loop, in which the timer fires, and then what it ends goes on."""
    worker = await serve(once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"))
    exchange = await pooled().send(Request("GET", "/"), worker.address, Deadlines(idle=0.05))
    time.sleep(0.1)  # noqa: ASYNC251 - the loop stands still
    for _ in range(turns):
        await asyncio.sleep(0)
    exchange.pause()
    exchange.resume()
    with pytest.raises(GatewayError, match="fell silent"):
        await exchange.read()


# httpx has another parser of HTTP/1.1, h11. It reads these, of which none can split a reply.
LENIENT = frozenset({"the same length twice", "a list of lengths", "folded header", "bare line feeds"})
# It waits for more of these, up to 100 kB or the deadline for the first byte; or for more of the body.
LATE = frozenset(
    {"garbage", "html without a head", "endless header line", "endless header name", "endless reason", "endless hints",
     "length beyond 64 bits"}
)  # fmt: skip


@pytest.mark.parametrize("case", sorted(framing.REFUSED.keys() - LENIENT - LATE))
async def test_a_head_is_refused(case: str, serve: Serve, pooled: MakeClient) -> None:
    await framing.test_refused_before_the_head(case, serve, pooled)


@pytest.mark.parametrize(
    "case",
    ["short of its length", "reset short of its length", "between chunks", "in a chunk", "no chunk size",
     "endless chunk extension"],
)  # fmt: skip
async def test_a_body_is_broken(case: str, serve: Serve, pooled: MakeClient) -> None:
    await framing.test_broken_body(case, serve, pooled)


@pytest.mark.parametrize("case", [case for case, (*_, kept) in framing.WHOLE.items() if kept and "1.0" not in case])
async def test_a_reply_is_whole(case: str, serve: Serve, pooled: MakeClient) -> None:
    await framing.test_whole(case, serve, pooled)

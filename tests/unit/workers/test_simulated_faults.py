"""Every fault does on the wire what its name says, and the ledger tells."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.simulated import Simulated
from tests.support.simulated.faults import parse


@pytest.fixture
async def sim() -> AsyncIterator[Simulated]:
    async with Simulated() as worker:
        yield worker


async def raw(sim: Simulated, fault: str, stream: bool = True, usage: bool = False) -> tuple[bytes, bool]:
    """All bytes of one answer on a fresh connection, and whether it ended in a reset."""
    body = {"messages": [{"role": "user", "content": 'sim:{"text":"aaaabbbbcccc"}'}], "stream": stream}
    if usage:
        body["stream_options"] = {"include_usage": True}
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.port, limit=2**28)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}x-sim-fault: {fault}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
    answer, reset = b"", False
    try:
        async with asyncio.timeout(30):
            while block := await reader.read(1 << 20):
                answer += block
    except ConnectionResetError:
        reset = True
    finally:
        writer.close()
    return answer, reset


WHOLE = b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("fault", "reset", "head", "words", "ended"),
    [
        ("reset", True, False, 0, False),
        ("reset@headers", True, True, 0, False),
        ("reset@2", True, True, 2, False),
        ("fin", False, False, 0, False),
        ("fin@headers", False, True, 0, False),
        ("fin@3", False, True, 3, False),
        ("eof@1", False, True, 1, True),
        ("eof", False, True, 0, True),
    ],
)
async def test_a_stream_that_breaks_off(
    sim: Simulated, fault: str, reset: bool, head: bool, words: int, ended: bool
) -> None:
    answer, was_reset = await raw(sim, fault)
    # What was sent before a reset may be lost on its way, as in life; then the ledger knows.
    assert was_reset == reset
    if not reset:
        assert answer.startswith(b"HTTP/1.1 200") == head
        assert sum(answer.count(word) for word in (b"aaaa", b"bbbb", b"cccc")) == words
    assert answer.endswith(WHOLE) == ended
    assert b'finish_reason":"' not in answer
    assert b"[DONE]" not in answer
    (entry,) = sim.entries
    assert (entry.state, entry.tokens, entry.fault) == ("failed", words, fault)


@pytest.mark.parametrize("fault", ["reset", "fin", "reset@headers", "fin@headers", "fin@2", "short-body"])
async def test_a_plain_reply_that_breaks_off(sim: Simulated, fault: str) -> None:
    answer, reset = await raw(sim, fault, stream=False)
    assert reset == fault.startswith("reset")
    assert (b"cccc" in answer) == (fault == "short-body")
    assert sim.entries[0].state == "failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_statuses(sim: Simulated, stream: bool) -> None:
    answer, _ = await raw(sim, "status:429:7", stream)
    assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"retry-after: 7\r\n" in answer
    assert answer.endswith(
        b'{"error":{"message":"Simulated error 429.","type":"RateLimitError","param":null,"code":429}}'
    )


@pytest.mark.parametrize(("fault", "words"), [("error-frame", 0), ("error-frame:503@2", 2)])
async def test_error_frames(sim: Simulated, fault: str, words: int) -> None:
    answer, _ = await raw(sim, fault)
    assert sum(answer.count(word) for word in (b"aaaa", b"bbbb", b"cccc")) == words
    code = 503 if words else 500
    assert b'data: {"error":{"message":"Simulated error.",' in answer
    assert f'"code":{code}}}}}\n\n'.encode() in answer
    assert answer.endswith(b"e\r\ndata: [DONE]\n\n\r\n" + WHOLE)


CHOICE = b'{"index":0,"text":"a","%b":{"content":"a"}}'


@pytest.mark.parametrize(
    ("fault", "stream", "part"),
    [
        ("html", True, b"content-type: text/html"),
        ("html:502", False, b"HTTP/1.1 502"),
        ("empty", False, b"content-length: 0\r\n"),
        ("header-junk", True, b"\x00bad header"),
        ("bad-chunk@1", True, b"\r\nzz\r\n"),
        ("bad-chunk", False, b"\r\n\r\nzz\r\n"),
        ("bad-json@1", True, b'"choices":[{"index":0,]}'),
        ("bad-json", False, b'"choices":[{"index":0,]}'),
        ("many-choices:3@1", True, b'"choices":[' + b",".join([CHOICE % b"delta"] * 3) + b"]}"),
        ("many-choices:3", False, b'"choices":[' + b",".join([CHOICE % b"message"] * 3) + b"]}"),
        ("many-calls:2", True, b'{"id":"call_0","function":{"name":"f"}},{"id":"call_1","function":{"name":"f"}}]'),
        ("many-values:2", True, b'"more":[{},{}]}'),
        ("error-frame", False, b'"code":500'),
        ("eof", False, b'{"id":'),
        ("crlf", True, b"data: [DONE]\r\n\r\n"),
        ("nospace", True, b"data:[DONE]\n\n"),
        ("comments", True, b": ping\n\ndata: [DONE]"),
        ("multi-data", True, b',\ndata: "choices":['),
        ("bom", True, b"\r\n3\r\n\xef\xbb\xbf\r\n"),
        ("close", True, b'"}\n\ndata: [DONE]\n\n'),
    ],
)
async def test_hostile_forms(sim: Simulated, fault: str, stream: bool, part: bytes) -> None:
    answer, reset = await raw(sim, fault, stream)
    assert not reset
    assert part in answer


async def test_forms_of_the_end(sim: Simulated) -> None:
    assert b"[DONE]" not in (await raw(sim, "no-done"))[0]
    assert b"NaN" in (await raw(sim, "nan-usage", usage=True))[0]
    assert b"usage" not in (await raw(sim, "no-usage", usage=True))[0]
    last = (await raw(sim, "usage-last", usage=True))[0]
    assert b'"choices":[]' not in last
    assert last.count(b'"usage":{') == 1
    plain, _ = await raw(sim, "")
    dripped, _ = await raw(sim, "drip:5")
    assert len(dripped) == len(plain)


async def test_huge_answers(sim: Simulated) -> None:
    answer, _ = await raw(sim, "huge-headers:1000")
    assert answer.count(b"x-padding: ") == 1000
    answer, _ = await raw(sim, "gzip-bomb:1", stream=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in head
    assert len(gzip.decompress(body)) == 1 << 20
    for stream in (False, True):
        answer, _ = await raw(sim, "endless:1@1", stream)
        assert answer.count(b"a" * 65536) == 16


async def test_a_long_body_leaves_bytes_over(sim: Simulated) -> None:
    head, _, body = (await raw(sim, "long-body", stream=False))[0].partition(b"\r\n\r\n")
    assert f"content-length: {len(body) - 10}\r\n".encode() in head + b"\r\n"


@pytest.mark.parametrize("fault", ["stall", "stall@headers", "stall@2"])
@pytest.mark.parametrize("stream", [False, True])
async def test_stalls_hold_a_slot_until_the_client_leaves(sim: Simulated, fault: str, stream: bool) -> None:
    asking = asyncio.create_task(raw(sim, fault, stream))
    await sim.wait(running=1)
    assert sim.engine.running == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await sim.wait(running=0, aborted=1)
    assert sim.engine.running == 0
    assert sim.entries[0].ended >= sim.entries[0].started


@pytest.mark.parametrize("fault", ["stall:0.01", "stall:0.01@headers", "stall:0.01@2", "stall:0.01@4"])
@pytest.mark.parametrize("stream", [False, True])
async def test_stalls_that_end(sim: Simulated, fault: str, stream: bool) -> None:
    answer, _ = await raw(sim, fault, stream)
    assert answer.endswith(b"data: [DONE]\n\n\r\n" + WHOLE) if stream else answer.endswith(b'"metrics":null}')
    assert answer.count(b'"finish_reason":"stop"') == 1
    assert sim.entries[0].state == "completed"


@pytest.mark.parametrize("fault", ["stall", "stall@headers", "stall@2", "stall@4"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stall_for_ever_ends_when_the_worker_is_told_to_go_on(sim: Simulated, fault: str, stream: bool) -> None:
    asking = asyncio.create_task(raw(sim, fault, stream))
    await sim.wait(running=1)
    while not sim.engine.stalled:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.001)
    sim.go_on()
    answer, _ = await asking
    assert answer.endswith(b"data: [DONE]\n\n\r\n" + WHOLE) if stream else answer.endswith(b'"metrics":null}')
    assert (sim.entries[0].state, sim.engine.stalled) == ("completed", {})


async def test_a_fault_from_the_message_the_body_and_the_default(sim: Simulated) -> None:
    async with httpx.AsyncClient(base_url=sim.url) as client:

        async def ask(**body: object) -> int:
            message = {"messages": [{"role": "user", "content": "x"}], **body}
            return (await client.post("/v1/chat/completions", json=message)).status_code

        script = 'sim:{"text":"x","fault":"status:501"}'
        assert await ask(messages=[{"role": "user", "content": script}]) == 501
        assert await ask(sim_fault="status:418") == 418
        await client.post("/sim/faults", json={"fault": "status:503", "count": 2, "skip": 1, "path": "/v1/chat"})
        assert [await ask() for _ in range(4)] == [200, 503, 503, 200]
        assert (await client.post("/sim/faults", json={"fault": "nonsense"})).status_code == 400


async def test_die_takes_listener_and_connections_along(sim: Simulated) -> None:
    answer, reset = await raw(sim, "die@1")
    assert reset or answer
    await sim.dead.wait()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", sim.port)
    await sim.start()  # the same port again
    assert (await raw(sim, ""))[0].endswith(WHOLE)


@pytest.mark.parametrize("spec", ["what", "reset,fin", "status", "reset@soon", "stall:long"])
def test_faults_that_cannot_be_read(spec: str) -> None:
    with pytest.raises(ValueError):
        parse(spec)

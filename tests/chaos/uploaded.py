"""B13: many large uploads at once, in little memory."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from functools import partial

from tests.chaos.house import House, house, program
from tests.chaos.link import connected
from tests.chaos.row import Findings, row
from tests.support.ports import free_port
from workers.simulated.media import Transcript, Upload

UPLOADS, SIZE = 100, 25 << 20
MOST_EACH = 2 << 20
"""Bytes of memory for each upload: what sockets, parser and threads have in hand."""
BLOCK = bytes(range(256)) * 1024
HEAD = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n'
TAIL = b'\r\n--edge\r\nContent-Disposition: form-data; name="model"\r\n\r\nhears\r\n--edge--\r\n'


async def hearing(at: House, port: int) -> list[str]:
    """Starts the worker of model "hears", whose transcripts depend on each byte."""
    words = [sys.executable, "-m", "workers.simulated", "--model", "sim", "--port", str(port)]
    at.others.append(await program(at.folder, "hears", *words, port=port))
    await at.others[-1].ready("/health")
    return [worker.address for worker in at.workers]


async def upload(at: House) -> str:
    """The transcript of SIZE bytes, or the status and the beginning of the reply."""
    reader, writer = await connected(at.gateways[0].address)
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\napi-key: {at.keys['one']}\r\nconnection: close\r\n"
    )
    length = f"content-length: {len(HEAD) + SIZE + len(TAIL)}\r\n"
    writer.write(f"{head}{length}content-type: multipart/form-data; boundary=edge\r\n\r\n".encode() + HEAD)
    for _ in range(SIZE // len(BLOCK)):
        writer.write(BLOCK)
        await writer.drain()
    writer.write(TAIL)
    answer = await reader.read()
    writer.close()
    status, body = answer[9:12], answer.partition(b"\r\n\r\n")[2]
    return str(json.loads(body)["text"]) if status == b"200" else answer[:300].decode(errors="replace")


@row("B13", "100 uploads of 25 MiB at once, whose model stands behind the file")
async def uploads(findings: Findings) -> None:
    """100 uploads of 25 MiB at once, whose `model` stands behind the file, to a model whose worker takes four requests
    at a time.

    Passes if each is transcribed as it was sent, and memory grows by at most 2 MiB for each.
    """
    port = free_port()
    hears = {"backend": "vllm", "upstream_model": "sim", "workers": [f"http://127.0.0.1:{port}"], "max_in_flight": 2}
    # The worker reads each upload in its own event loop, and answers no probe meanwhile.
    settings = {"models": {"hears": hears}, "health": {"interval_s": 60, "timeout_s": 60}}
    async with house({"one": {}}, settings, 1, front=partial(hearing, port=port)) as at:
        gateway = at.gateways[0]
        await upload(at)
        before, busy = gateway.resident(), gateway.cpu_s()
        found = Counter(await asyncio.gather(*(upload(at) for _ in range(UPLOADS))))
        grown = gateway.resident(at_worst=True) - before
        sent = Upload({}, {"file": [("a.mp3", BLOCK * (SIZE // len(BLOCK)))]})
        wanted = Transcript(sent, "sim", "transcription").text
        findings.none("uploads that are not transcribed as they were sent", found - Counter({wanted: UPLOADS}), UPLOADS)
        cpu_ms = (gateway.cpu_s() - busy) * 1000 / UPLOADS
        findings.check(
            f"MiB of memory at worst ({UPLOADS * MOST_EACH >> 20}; {UPLOADS * SIZE >> 20} are uploaded, with "
            f"{cpu_ms:.0f} ms of CPU each)",
            f"{grown / 2**20:.0f}",
            UPLOADS,
            grown <= UPLOADS * MOST_EACH,
        )

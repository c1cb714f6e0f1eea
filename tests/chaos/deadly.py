"""D1: a request that kills its workers, and a model that falls to another one."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import Link
from tests.chaos.paced import known, paced
from tests.chaos.row import FULL, Findings, row
from tests.support import clients

RATE = 50.0
BESIDE_S = 10.0 if FULL else 3.0
TRIES = 10
"""How often the client of the deadly request sends it."""
DEADLY = json.dumps({"text": "a", "fault": "die@before"})
WORKERS = 5


@row("D1", "a request that kills its workers, and a model that falls to another one")
async def deadly(findings: Findings) -> None:
    """Beside 50 other requests a second, one request kills every worker that gets it (the process ends), and its
    client sends it 10 times; 4 workers, and a fallback model. Then the other workers of its model are killed, and
    every dialect is asked for a reply.

    Passes if 2 workers die in all; the client gets `request_quarantined`, and the log names it once; at most 1 % of
    the others fail. The fallback answers in every dialect, and every reply names it.
    """
    spare: dict[str, Any] = {"backend": "vllm", "upstream_model": "sim"}
    config = {
        "models": {"m": {"fallback": ["spare"]}, "spare": spare},
        "health": {"interval_s": 0.5, "timeout_s": 0.5},
        "retry": {"attempts": 5},
    }

    async def front(at: House) -> list[str]:
        spare["workers"] = [f"http://{at.workers[-1].address}"]
        return [one.address for one in at.workers[:-1]]

    async with house({}, config, 1, [("--itl-ms", "2")] * (WORKERS + 1), front=front) as at:
        await known(at)
        await _deadly(findings, at)
        await _falling(findings, at)


async def _deadly(findings: Findings, at: House) -> None:
    link = Link(at.gateways[0].address)
    async with paced(at, RATE, chat(4), "beside") as load:
        await asyncio.sleep(0.5)
        answers = [await link.post(CHAT, chat(1, text=f"sim:{DEADLY}"), {}) for _ in range(TRIES)]
        await asyncio.sleep(BESIDE_S)
    link.close()
    died = [one for one in at.workers if one.process.returncode is not None]
    findings.check(f"workers that died of it in {TRIES} tries, 2", len(died), TRIES, len(died) == 2)
    codes = {answer.json()["error"]["code"] for answer in answers}
    findings.check("what its client is told", sorted(codes), TRIES, codes == {"request_quarantined"})
    held = [line for line in at.gateways[0].lines() if line.get("event") == "request quarantined"]
    findings.check("lines of the log that say so, 1", len(held), TRIES, len(held) == 1)
    failed = [one for one in load.asked if one.status != 200]
    share = len(failed) / max(1, len(load.asked))
    findings.at_most("errors of the others, share (0.01 at most)", share, 0.01, len(load.asked), ".4f")


async def _falling(findings: Findings, at: House) -> None:
    """All workers of `m` die: `spare` answers for it in every dialect."""
    living = [one for one in at.workers[:-1] if one.process.returncode is None]
    for one in living:
        one.process.send_signal(signal.SIGKILL)
        await one.process.wait()
    link = Link(at.gateways[0].address)
    answered = named = 0
    for name in clients.DIALECTS:
        way = clients.usual(name)
        stream = not way.answers(stream=False)
        answer = await link.post(way.path("m"), {"model": "m", **way.body(stream=stream, max_tokens=4)}, {})
        answered += answer.status == 200
        named += answer.headers.get("x-dragoman-model") == "spare"
    link.close()
    total = len(clients.DIALECTS)
    findings.check("dialects that the fallback answers, all", answered, total, answered == total)
    findings.check("replies that name it, all", named, total, named == total)

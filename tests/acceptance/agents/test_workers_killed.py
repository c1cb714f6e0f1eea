"""Agents go on while their workers are killed (`make test-agents`): three simulated workers as processes, of which the
one that streams is ended by SIGKILL, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agents.command import Ran, call, conversation
from tests.acceptance.agents.test_claude_code import claude
from tests.acceptance.agents.test_codex import codex, shell
from tests.chaos.continued import killed_and_back
from tests.chaos.house import House, house
from tests.chaos.link import Link

pytestmark = pytest.mark.agents

ROUNDS = 10
WORDS = " ".join(f"Word{number}" for number in range(40))
KILL_S = 3.0
"""Between two deaths."""
INSIDE_S = 0.4
"""After a worker got its request: it is in the middle of its text, which takes 1.6 s."""
WORKER = ("--itl-ms", "40", "--max-model-len", "200000")
"""A round takes some 2 s."""
BUSY = re.compile(r'^dragoman_worker_in_flight\{[^}]*worker="([^"]+)"[^}]*\} 1\.0$', re.MULTILINE)
CONFIG: dict[str, Any] = {
    "models": {"m": {"policy": "round_robin"}},
    "health": {"interval_s": 0.5, "timeout_s": 0.5},
    "breaker": {"eject_s": 1, "slowstart_s": 0},
}
AGENTS: dict[str, tuple[Callable[[str, Path, str], Ran], Callable[[str], dict[str, Any]]]] = {
    "claude": (claude, lambda command: call("Bash", command=command)),
    "codex": (codex, shell),
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_task_outlives_its_workers(agent: str, tmp_path: Path) -> None:
    """Streams of text go on at another worker. Those that were cut in a tool call are asked again by the agent."""
    run, tool = AGENTS[agent]
    rounds = [{"text": WORDS, "tool_calls": [tool(f"echo {number} >> done")]} for number in range(ROUNDS)]
    prompt = conversation(*rounds, {"text": f"{WORDS} All done."})
    async with house({}, CONFIG, 1, [WORKER] * 3) as at:
        over = asyncio.Event()
        killing = asyncio.create_task(kill(at, over))
        ran = await asyncio.to_thread(run, f"http://{at.gateways[0].address}", tmp_path, prompt)
        over.set()
        deaths = await killing
        records = [record for record in at.records().values() if record["operation"] != "models"]
    assert ran.code == 0, ran.said[-2000:]
    assert (tmp_path / "work" / "done").read_text().split() == [str(number) for number in range(ROUNDS)]
    assert "All done." in ran.said
    assert deaths >= 3
    continued = [record for record in records if record["continued"] and record["outcome"] == "ok"]
    assert continued, "no worker was killed in mid-stream"
    # The others are said to be so, and were cut in a tool call.
    ends = Counter((record["outcome"], record["not_continued"]) for record in records)
    assert set(ends) <= {("ok", None), ("failed", "tool_call")}, ends


async def kill(at: House, over: asyncio.Event) -> int:
    """Kills the worker that streams, each back before the next dies; how many, until `over`."""
    deaths = 0
    link = Link(at.gateways[0].address)
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), KILL_S)
        while not over.is_set():
            busy = BUSY.findall((await link.get("/metrics")).body.decode())
            place = next((n for n, one in enumerate(at.workers) if f"http://{one.address}" in busy), None)
            if place is not None:
                await asyncio.sleep(INSIDE_S)
                at.workers[place] = await killed_and_back(at.workers[place])
                deaths += 1
                break
            await asyncio.sleep(0.05)
    link.close()
    return deaths

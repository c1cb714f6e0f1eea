"""Agents go on while their workers are killed (`make test-agents`): three simulated workers as processes, of which one
after the other is ended by SIGKILL in the middle of a stream, and started again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents.command import Ran, call, conversation
from tests.agents.test_claude_code import claude
from tests.agents.test_codex import codex, shell
from tests.chaos.continued import kill
from tests.chaos.house import house

pytestmark = pytest.mark.agents

ROUNDS = 10
WORDS = " ".join(f"Word{number}" for number in range(40))
KILL_S = 3.0
WORKER = ("--itl-ms", "40", "--max-model-len", "200000")
"""A round takes some 2 s."""
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
        killing = asyncio.create_task(kill(at, over, KILL_S))
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

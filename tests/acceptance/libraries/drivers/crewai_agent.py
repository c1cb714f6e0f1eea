"""CrewAI: an agent, and its model alone for streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crewai import LLM, Agent
from crewai.tools import tool


def connect(url: str, model: str) -> Any:
    return LLM(model=model, provider="openai", base_url=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.call(prompt)


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    with client.stream_events(prompt) as frames:
        for frame in frames:
            if frame.type == "llm_stream_chunk":
                yield frame.content


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    agent = Agent(role="Tester", goal="Answer.", backstory="You test.", llm=client, tools=[tool(look)])
    return agent.kickoff(prompt).raw

"""OpenAI's Agents SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool

AGENT: Agent[Any] = Agent(name="tested")
# Its connections belong to one loop.
LOOP = asyncio.new_event_loop()


def connect(url: str, model: str) -> Any:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return RunConfig(model=model, model_provider=provider, tracing_disabled=True)


def whole(client: Any, model: str, prompt: str) -> Any:
    return LOOP.run_until_complete(Runner.run(AGENT, prompt, run_config=client)).final_output


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    async def begun() -> Any:
        return Runner.run_streamed(AGENT, prompt, run_config=client).stream_events()

    events = LOOP.run_until_complete(begun())
    while (event := LOOP.run_until_complete(anext(events, None))) is not None:
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    agent: Agent[Any] = Agent(name="tested", tools=[function_tool(look)])
    return LOOP.run_until_complete(Runner.run(agent, prompt, run_config=client)).final_output

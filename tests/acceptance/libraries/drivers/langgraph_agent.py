"""LangGraph, with a model of langchain-openai: a graph of a model and its tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def connect(url: str, model: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model)


def _graph(client: Any, tools: list[Any]) -> Any:
    model = client.bind_tools(tools) if tools else client
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def whole(client: Any, model: str, prompt: str) -> Any:
    return _graph(client, []).invoke({"messages": [("user", prompt)]})["messages"][-1].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk, _ in _graph(client, []).stream({"messages": [("user", prompt)]}, stream_mode="messages"):
        yield chunk.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    return _graph(client, [tool(look)]).invoke({"messages": [("user", prompt)]})["messages"][-1].text

"""A response's items, their order and their status are those of its stream, in whatever order a worker speaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.lifecycle import fold
from gateway.wire import sse
from tests.laws.conformance.cases import DIALECTS
from tests.laws.conformance.test_any_order import CHATTING, asking, said


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in output]


@pytest.mark.parametrize("client", [one for one in CHATTING if one.dialect == "responses"], ids=lambda one: one.name)
@given(seed=st.integers(0, 2**32))
@example(seed=30)
@example(seed=151)
@example(seed=264)
@example(seed=848)
def test_the_items_of_a_stream_are_those_of_the_whole(client: Any, seed: int) -> None:
    """A text that began before a call and spoke behind it made the call the cut one of the whole response alone."""
    dialect, events = DIALECTS[client.dialect], said(seed)
    writer = dialect.writer(asking(client, stream=True))
    last = json.loads(sse.Reader().feed(b"".join(map(writer.write, events)))[-1].data)
    whole = json.loads(dialect.write(fold(events), asking(client, stream=False)).body)
    assert without_ids(last["response"]["output"]) == without_ids(whole["output"])
    cut = [item for item in whole["output"] if item["status"] == "incomplete"]
    assert cut == (whole["output"][-1:] if whole["status"] == "incomplete" else [])
    calls = [item for item in whole["output"] if item["type"] == "function_call"]
    assert all(item["arguments"] for item in calls if item["status"] == "completed")

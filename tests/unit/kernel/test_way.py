"""Features around the way of a request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.core.http import Headers
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature
from tests.support.harness import Stack
from tests.support.standins.web import web
from tests.unit.features.test_web_tools import asked, call, tools

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


class Named(Feature):
    def __init__(self) -> None:
        self.headers = self._name

    def _name(self, call: Call) -> Headers:
        return [(b"x-named", call.served.name.encode())]


def test_a_feature_of_one_model_adds_headers() -> None:
    with Stack() as stack:
        served = stack.gateway.deployment.runtime.models["m"]
        served.way = served.way.inside(Named())
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).headers["x-named"] == "m"
        assert "x-named" not in httpx.get(stack.url + "/v1/models").headers


@pytest.mark.feature("prefill")
def test_the_prompt_of_each_round_of_tools_is_computed_by_a_prefill_worker() -> None:
    role: dict[str, Any] = {"kv_transfer": True}
    with web() as service, Stack((role, role)) as stack:
        generate, compute = (sim.url for sim in stack.sims)
        model = {"workers": [generate], "prefill": {"workers": [compute]}}
        stack.run(stack.gateway.reload(stack.config({"models": {"m": model}, **tools(service)})))
        body = asked({"tool_calls": [call("web_search", query="red")]}, {"text": "Red it is."})
        reply = httpx.post(stack.url + "/v1/messages", json=body, timeout=30)
        assert reply.status_code == 200, reply.text
        assert "Red it is." in json.dumps(reply.json()["content"])
        assert [[entry.kv for entry in sim.entries] for sim in stack.sims] == [["decode"] * 2, ["prefill"] * 2]

"""Whatever a client sends, a dialect reads it or refuses it in its own form; and its document knows its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError
from gateway.core.http import Request
from gateway.core.ports import Dialect, Settings
from gateway.dialects import create
from tests.repo.tree import ROOT
from tests.support.clients import refusal

DIALECTS: dict[str, Dialect] = {
    name: create(name, Settings(extras="pass")) for name in ("azure_inference", "ollama_style")
}
WORDS = ["user", "tool", "text", "image", "image_url", "function", "content", "type", "role", "json", "name", "url"]
NAMES = sorted(
    {field.name.removeprefix("options.") for dialect in DIALECTS.values() for field in dialect.fields["chat"]}
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(-3, 3) | st.sampled_from(WORDS) | st.text(max_size=8)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
messages = st.just([{"role": "user", "content": "hi"}]) | values
bodies = st.builds(
    lambda found, rest: {"messages": found, **rest}, messages, st.dictionaries(st.sampled_from(NAMES), values)
)


@pytest.mark.parametrize("name", DIALECTS)
@given(body=bodies)
def test_it_is_read_or_refused(name: str, body: dict[str, Any]) -> None:
    dialect = DIALECTS[name]
    for route in dict.fromkeys(route.name for route in dialect.routes if route.method == "POST"):
        request = Request("POST", "/", [], json.dumps(body).encode(), b"api-version=2024-05-01", route)
        try:
            dialect.read(request)
        except GatewayError as error:
            response = dialect.refuse(error, request, None)[0]
            assert 400 <= response.status < 500
            assert isinstance(json.loads(refusal(response)), dict)


@pytest.mark.parametrize("name", DIALECTS)
def test_its_document_names_every_field(name: str) -> None:
    text = (ROOT / "docs" / "dialects" / f"{name}.md").read_text()
    fields = {field.name for fields in DIALECTS[name].fields.values() for field in fields}
    # Members of `options` stand in one row, by their short names.
    missing = [field for field in fields if f"`{field}`" not in text and f"`.{field.partition('.')[2]}`" not in text]
    assert missing == []

"""Tools, schemas in the form of Google, and the form of the output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import NamedTool, Output
from tests.support.raised import raised
from tests.unit.dialects.gemini.asking import GEMINI, HI, TOOLS, asking, chat, refused


@pytest.mark.parametrize(
    ("calling", "choice", "tools"),
    [
        ({}, "auto", "fg"),
        ({"mode": "AUTO"}, "auto", "fg"),
        ({"mode": "any"}, "required", "fg"),
        ({"mode": "ANY", "allowedFunctionNames": ["g"]}, NamedTool("g"), "g"),
        ({"mode": "ANY", "allowedFunctionNames": ["g", "f"]}, "required", "fg"),
        ({"mode": "NONE"}, "none", "fg"),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["f"]}, "auto", "f"),
    ],
)
def test_calling(calling: dict[str, Any], choice: Any, tools: str) -> None:
    op = chat(tools=TOOLS, toolConfig={"functionCallingConfig": calling})
    assert op.tool_choice == choice
    assert "".join(tool.name for tool in op.tools) == tools
    assert {tool.strict for tool in op.tools} == {True if calling.get("mode") == "VALIDATED" else None}
    assert op.dropped == ()


def test_calling_that_is_refused_or_named() -> None:
    for calling, words in (
        ({"mode": "SOMETIMES"}, "must be AUTO, ANY, NONE or VALIDATED"),
        ({"mode": "ANY", "allowedFunctionNames": ["h"]}, "there is no function 'h'"),
    ):
        assert words in refused(tools=TOOLS, toolConfig={"functionCallingConfig": calling}).message
    assert "no functions" in refused(toolConfig={"functionCallingConfig": {"mode": "ANY"}}).message
    assert chat(toolConfig={"functionCallingConfig": {"mode": "NONE"}}).dropped == ("toolConfig",)
    left = chat(tools=TOOLS, toolConfig={"functionCallingConfig": {"allowedFunctionNames": ["f"]}}).dropped
    assert left == ("toolConfig.functionCallingConfig.allowedFunctionNames",)


@pytest.mark.parametrize(
    "name",
    [
        *("codeExecution", "fileSearch"),
        *("googleMaps", "computerUse", "retrieval", "mcpServers"),
    ],
)
def test_tools_of_googles_own_servers_are_refused(name: str) -> None:
    error = refused(tools=[*TOOLS, {name: {}}])
    assert error.kind is Kind.UNSUPPORTED
    assert error.param == f"tools.1.{name}"


OF_THE_WEB = ["googleSearch", "google_search", "googleSearchRetrieval", "enterpriseWebSearch", "urlContext"]


@pytest.mark.parametrize("name", OF_THE_WEB)
def test_the_model_answers_without_a_tool_of_the_web(name: str) -> None:
    told = "tools[]." + {"google_search": "googleSearch"}.get(name, name)
    assert (chat(tools=[{name: {}}]).dropped, chat(tools=[{name: {}}]).tools) == ((told,), ())
    both = chat(tools=[*TOOLS, {name: {}}])
    assert told in both.dropped
    assert both.tools == chat(tools=TOOLS).tools


@pytest.mark.parametrize("name", OF_THE_WEB)
def test_gemini_cli_asks_for_the_result_alone(name: str) -> None:
    request = asking({"contents": HI, "tools": [{name: {}}]})
    request.headers.append((b"user-agent", b"GeminiCLI/0.61.0/m (linux; x64; terminal)"))
    assert raised(GEMINI.read, request).kind is Kind.UNSUPPORTED


def test_a_schema_of_google() -> None:
    schema = {
        "type": "OBJECT",
        "property_ordering": ["b", "a"],
        "properties": {
            "a": {"type": "STRING", "nullable": True, "enum": ["x"], "format": "enum"},
            "b": {"type": "ARRAY", "minItems": "1", "max_items": "3", "items": {"type": "INTEGER", "format": "int32"}},
            "max_items": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True, "example": 1},
        },
        "required": ["a"],
    }
    output = chat(generationConfig={"responseSchema": schema}).output
    assert output is not None
    found = json.loads(bytes(output.schema or b""))
    assert found == {
        "type": "object",
        "properties": {
            "b": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "integer", "format": "int32"}},
            "a": {"type": ["string", "null"], "enum": ["x", None]},
            "max_items": {"anyOf": [{"anyOf": [{"type": "number"}, {"type": "boolean"}]}, {"type": "null"}]},
        },
        "required": ["a"],
    }
    assert list(found["properties"]) == ["b", "a", "max_items"]


def test_schemas_within_each_other_are_bounded() -> None:
    deep: dict[str, Any] = {"type": "STRING"}
    for _ in range(80):
        deep = {"type": "ARRAY", "items": deep}
    assert "within each other" in refused(generationConfig={"responseSchema": deep}).message


@pytest.mark.parametrize("name", ["items", "additionalProperties", "anyOf", "any_of"])
@pytest.mark.parametrize("deep", [80, 500, 650])
def test_lists_in_a_schema_are_bounded(name: str, deep: int) -> None:
    schema = {name: json.loads("[" * deep + "]" * deep)}
    within = "within each other"
    assert within in refused(generationConfig={"responseSchema": schema}).message
    assert within in refused(tools=[{"functionDeclarations": [{"name": "f", "parameters": schema}]}]).message


def test_a_schema_that_null_makes_deeper_can_be_written() -> None:
    """Each null puts two levels around what the decoder just took: a body that may be read leaves room for those."""
    around, end = b'{"nullable":true,"items":' * 60, b"}" * 60
    told = []
    for deep in range(500, 1000, 10):
        request = asking({"contents": HI, "generationConfig": {"responseSchema": "HERE"}})
        schema = around + b'{"default":%b%b}' % (b"[" * deep, b"]" * deep) + end
        request.body = request.body.replace(b'"HERE"', schema)
        try:
            GEMINI.read(request)
        except GatewayError as error:
            told.append(error.message)
    assert 0 < len(told) < 50
    assert set(told) == {"the request body is nested too deeply"}


def test_a_schema_may_have_as_many_arrays_of_schemas_as_schemas() -> None:
    deep: dict[str, Any] = {"type": "STRING"}
    for _ in range(60):
        deep = {"anyOf": [deep]}
    assert chat(generationConfig={"responseSchema": deep}).output is not None


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, Output("json")),
        (
            {"responseMimeType": "text/x.enum", "responseSchema": {"enum": ["a", "b"]}},
            Output("choice", choices=("a", "b")),
        ),
    ],
)
def test_the_form_of_the_output(config: dict[str, Any], output: Output | None) -> None:
    assert chat(generationConfig=config).output == output

"""What the dialect `gemini` makes of requests that the fidelity rows and the conformance suite do not show."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from gateway.core.messages import Audio, Chat, CountTokens, Embed, Image, Message, Part, Text, Thinking, ToolCall
from gateway.core.sealing import Sealing
from gateway.dialects.gemini.signatures import Thoughts
from tests.support.raised import raised
from tests.unit.dialects.gemini.asking import GEMINI, HI, TOOLS, asking, chat, model, refused, user


def said(*contents: Any) -> tuple[Message, ...]:
    return chat(contents=list(contents)).messages


def call(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"a": 1}, **more}}


def response(name: str = "f", returned: Any = None, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": returned or {"output": "x"}, **more}}


def test_both_spellings_are_one() -> None:
    """At any depth, in one body too, as Google's client for Python writes them."""
    own = {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [user({"inlineData": {"mimeType": "image/png", "data": ""}}), model(call()), user(response())],
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"a_b": {"c_d": 1}}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"maxOutputTokens": 5, "stopSequences": [], "thinkingConfig": {"includeThoughts": True}},
    }  # fmt: skip
    text = json.dumps(own)
    for name in (
        *("systemInstruction", "inlineData", "mimeType", "functionCall", "functionResponse", "functionDeclarations"),
        *("parametersJsonSchema", "toolConfig", "functionCallingConfig", "allowedFunctionNames", "generationConfig"),
        *("maxOutputTokens", "stopSequences", "thinkingConfig", "includeThoughts"),
    ):
        other = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        text = text.replace(f'"{name}"', f'"{other}"')
        assert GEMINI.read(asking(json.loads(text))) == GEMINI.read(asking(own)), name


def test_one_object_stands_for_an_array() -> None:
    one = chat(contents={"parts": {"text": "hi"}}, tools=TOOLS[0])
    assert one == chat(contents=[user({"text": "hi"})], tools=TOOLS)


@pytest.mark.parametrize(
    "body",
    [
        {"generationConfig": {}, "generation_config": {"seed": 1}},
        {"generationConfig": {"topK": 1, "top_k": 2}},
        {"contents": [{"parts": [{"inlineData": {"mimeType": "a/b", "mime_type": "c/d", "data": ""}}]}]},
    ],
)
def test_both_spellings_at_once_are_refused(body: dict[str, Any]) -> None:
    assert "are the same" in refused(**body).message


def test_what_belongs_to_the_user_keeps_its_names() -> None:
    arguments = {"mime_type": {"max_items": 1.0}}
    (found,) = said(user({"text": "a"}), model(call(args=arguments)), user(response()))[1].parts
    assert isinstance(found, ToolCall)
    assert json.loads(found.arguments) == arguments
    # The request is read again because of `topK`.
    op = chat(
        contents=[user({"text": "a"}), model(call(args=arguments)), user(response())], generationConfig={"topK": 5.0}
    )
    assert op.sampling.top_k == 5
    assert '"max_items": 1.0' in op.messages[1].parts[0].arguments  # type: ignore[union-attr]  # a call


def test_turns() -> None:
    messages = said(
        user({"text": "a"}),
        model({"text": "hm", "thought": True}, {"text": "b"}, call(id="c1"), call("g", id="c2")),
        user({"text": "c"}, response("g", {"error": "no"}, id="c2"), response("f", {"result": [1]}, id="c1")),
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert messages[1].parts[:2] == (Thinking("hm"), Text("b"))
    assert [(one.call_id, one.parts) for one in messages[2:4]] == [
        ("c2", (Text("Error: no"),)),
        ("c1", (Text('{"result": [1]}'),)),
    ]
    assert messages[4].parts == (Text("c"),)


def test_contents_of_one_role_in_a_row_are_one_turn() -> None:
    """Google's client for Python sends every item of a stream back as a content."""
    apart = said(
        *HI, model({"text": "a"}), model(call()), model(call("g")), model({"text": ""}), user(response(), response("g"))
    )
    assert apart == said(*HI, model({"text": "a"}, call(), call("g")), user(response()), user(response("g")))
    assert [message.role for message in apart] == ["user", "assistant", "tool", "tool"]


def test_responses_without_ids_answer_by_name_and_order() -> None:
    messages = said(
        user({"text": "a"}),
        model(call(), call(), call("g")),
        user(response("g", {"output": "1"}), response("f", {"output": "2"}), response("f", {"output": "3"})),
    )
    first, second, third = (part.id for part in messages[1].parts if isinstance(part, ToolCall))
    assert [message.call_id for message in messages[2:]] == [third, first, second]
    assert len({first, second, third}) == 3
    assert all(len(one or "") == 9 for one in (first, second, third))


@pytest.mark.parametrize(
    ("blob", "part"),
    [
        ({"mimeType": "image/png", "data": "-_8="}, Image("data:image/png;base64,+/8=")),
        ({"mimeType": "audio/mpeg", "data": "AA=="}, Audio("AA==", "mp3")),
        ({"mimeType": "text/plain; charset=utf-8", "data": b64encode("é".encode()).decode()}, Text("é")),
        ({"mimeType": "application/json", "data": "e30="}, Text("{}")),
        ({"mimeType": "application/pdf", "data": "AA=="}, Text("[PDF omitted]")),
        ({"mimeType": "video/mp4", "data": "AA=="}, Text("[file omitted]")),
    ],
)
def test_inline_data(blob: dict[str, str], part: Part) -> None:
    op = chat(contents=[user({"inlineData": blob})])
    assert op.messages[0].parts == (part,)
    omitted = isinstance(part, Text) and "omitted" in part.text
    assert op.dropped == (("contents[].parts[].inlineData",) if omitted else ())


def test_media_of_a_response_stand_behind_it() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    messages = said(user({"text": "a"}), model(call(id="c")), user(response(id="c", parts=[image])))
    assert [message.role for message in messages[2:]] == ["tool", "user"]
    assert messages[3].parts == (Image("data:image/png;base64,AA=="),)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([{"role": "system", "parts": [{"text": "a"}]}], "contents.0.role"),
        ([user(call())], "belongs to the model's turn"),
        ([user({"text": "a", "inlineData": {"data": ""}})], "more than one"),
        ([user({"text": "a"}), model({**call(), "text": "b"}), user(response())], "more than one"),
        ([user({"text": "a"}), model(call()), user({**response(), "text": "b"})], "more than one"),
        (
            [user({"text": "a"}), model({"text": "b", "thought": True, "inlineData": {"data": ""}}), *HI],
            "more than one",
        ),
        ([user({"fileData": {"fileUri": "gs://b/o", "mimeType": "image/png"}})], "files are not kept"),
        ([user({"fileData": {"fileUri": "https://x/y.pdf", "mimeType": "application/pdf"}})], "files are not kept"),
        ([user({"inlineData": {"mimeType": "text/plain", "data": "!"}})], "base64"),
        ([user({"text": "a"}), model(call())], "without a functionResponse"),
        ([user({"text": "a"}), model({"functionCall": {"args": {}}})], "needs a name"),
        ([user({"text": "a"}), model(call(args=[1]))], "must be an object"),
        ([user(response("f", [1]))], "must be an object"),
        ([], "contents"),
        ([user()], "at least one content"),
    ],
)
def test_contents_that_are_refused(contents: Any, words: str) -> None:
    assert words in refused(contents=contents).message


def test_parts_of_googles_own_servers_are_named() -> None:
    op = chat(contents=[user({"text": "a"}), model({"executableCode": {"code": "x"}}, {"text": "b"}), *HI])
    assert op.dropped == ("contents[].parts[].executableCode",)
    said = [model({**call(), "partMetadata": {"a": 1}}), user({**response(), "mediaResolution": "LOW"})]
    op = chat(contents=[*HI, *said])
    assert op.dropped == ("contents[].parts[].partMetadata", "contents[].parts[].mediaResolution")


CALLER = Sealing("team-a", b"k" * 32)
SECRET = "ab" * 200 + "\u2028é"


def sealed(text: str, sealing: Sealing = CALLER) -> str:
    return Thoughts(lambda: sealing).close(text)


def thinking(signature: str, *before: Any) -> list[str]:
    request = asking(
        {"contents": [*HI, model(*before, {**call(id="c"), "thoughtSignature": signature}), user(response())]}
    )
    request.sealing = lambda: CALLER
    op = GEMINI.read(request)
    assert isinstance(op, Chat)
    return [part.text for part in op.messages[1].parts if isinstance(part, Thinking)]


def test_a_signature_brings_the_thinking_back() -> None:
    """In either alphabet of base64, and with the thoughts beside it only once."""
    text = sealed(SECRET)
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert SECRET not in text
    assert thinking(text) == [SECRET]
    assert thinking(text.translate(str.maketrans("+/", "-_"))) == [SECRET]
    assert thinking(text, {"text": "hm", "thought": True}) == ["hm"]


@pytest.mark.parametrize(
    "signature",
    [
        "skip_thought_signature_validator",
        "",
        "AA==",
        "dgs2",
        sealed(SECRET, Sealing("team-b", b"k" * 32)),
        sealed(SECRET, Sealing("team-a", b"l" * 32)),
        sealed(SECRET)[:-8],
    ],
)
def test_a_signature_of_another_origin_is_ignored(signature: str) -> None:
    assert thinking(signature) == []


@pytest.mark.parametrize(
    "config",
    [
        {"responseMimeType": "image/png"},
        {"responseMimeType": "text/x.enum"},
        {"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING"}},
        {"responseSchema": [1]},
        {"responseJsonSchema": "x"},
        {"responseModalities": ["AUDIO"]},
        {"temperature": "hot"},
        {"thinkingConfig": 1},
    ],
)
def test_values_that_are_refused(config: dict[str, Any]) -> None:
    assert (refused(generationConfig=config).param or "").startswith("generationConfig.")


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({"thinkingBudget": 0}, "none"),
        ({"thinkingBudget": -1}, None),
        ({"thinkingBudget": 4095}, "low"),
        ({"thinkingBudget": 4096}, "medium"),
        ({"thinkingBudget": 16384}, "high"),
        ({"thinkingLevel": "MINIMAL"}, "low"),
        ({"thinkingLevel": "high", "thinkingBudget": 0}, "high"),
        ({"includeThoughts": True}, None),
    ],
)
def test_thinking(thinking: dict[str, Any], effort: str | None) -> None:
    op = chat(generationConfig={"thinkingConfig": thinking})
    assert op.reasoning == effort
    assert ("reasoning_effort" in op.optional) is (effort is not None)


def test_the_model_of_the_path() -> None:
    op = GEMINI.read(asking({"contents": HI, "model": "models/m"}, place="p/locations/l/publishers/org"))
    assert isinstance(op, Chat)
    assert (op.model, op.model_hints) == ("m", ("m", "org/m"))
    other = GEMINI.read(asking({"contents": HI, "model": "models/a/n"}))
    assert isinstance(other, Chat)
    assert (other.model, other.model_hints) == ("a/n", ("m",))


def test_a_whole_request_is_counted() -> None:
    whole = {"contents": HI, "system_instruction": {"parts": {"text": "s"}}, "model": "models/m"}
    op = GEMINI.read(asking({"generate_content_request": whole}, "count"))
    assert isinstance(op, CountTokens)
    assert isinstance(op.prompt_of, Chat)
    assert [message.role for message in op.prompt_of.messages] == ["system", "user"]


def test_embeddings_of_several_texts() -> None:
    one = {"content": {"parts": [{"text": "a"}, {"text": "b"}]}, "outputDimensionality": 8, "model": "models/m"}
    op = GEMINI.read(asking({"requests": [one, {**one, "task_type": "RETRIEVAL_QUERY"}]}, "embed_many"))
    assert isinstance(op, Embed)
    assert (op.inputs, op.dimensions, op.truncate) == (("a\nb", "a\nb"), 8, False)
    assert op.dropped == ("requests[].taskType",)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "is required"),
        ({"content": {"parts": [{"text": "a"}]}, "instances": [{"content": "a"}]}, "is required"),
        ({"content": {"parts": [{"inlineData": {"data": ""}}]}}, "parts of text"),
        (
            {"requests": [{"content": {"parts": [{"text": "a"}]}, "outputDimensionality": n} for n in (1, 2)]},
            "the same",
        ),
    ],
)
def test_embeddings_that_are_refused(body: dict[str, Any], words: str) -> None:
    assert words in raised(GEMINI.read, asking(body, "embed")).message


def test_more_of_what_nothing_reads_is_named() -> None:
    op = chat(generationConfig={"thinkingConfig": {"thinkingLevel": "UTMOST"}})
    assert (op.reasoning, op.dropped) == (None, ("generationConfig.thinkingConfig.thinkingLevel",))
    image = {"mimeType": "image/png", "data": "AA==", "displayName": "a"}
    assert chat(contents=[user({"inlineData": image})]).dropped == ("contents[].parts[].inlineData.displayName",)
    told = response()
    told["functionResponse"] |= {"willContinue": True, "scheduling": "SILENT"}
    assert chat(contents=[*HI, model(call()), user(told)]).dropped == (
        "contents[].parts[].functionResponse.scheduling",
        "contents[].parts[].functionResponse.willContinue",
    )

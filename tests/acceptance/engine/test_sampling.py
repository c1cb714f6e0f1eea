"""What the parameters of a request do in the engine, asked through the gateway."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.acceptance.engine.ask import MESSAGES, PROMPT, chunks, friendli_events, friendli_stream

pytestmark = [pytest.mark.engine, pytest.mark.whole]  # minutes; the others ask every dialect

CHAT = "/openai/v1/chat/completions"
TEXT = "/openai/v1/completions"
FRIENDLI = "/friendli/v1/completions"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,  # else vLLM 0.32 lets a model write any JSON as arguments
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def chat(gateway: httpx.Client, path: str = CHAT, **fields: Any) -> httpx.Response:
    return gateway.post(path, json={"model": "smollm2", "messages": MESSAGES, "max_tokens": 24, **fields})


def text(gateway: httpx.Client, path: str = TEXT, **fields: Any) -> httpx.Response:
    return gateway.post(path, json={"model": "smollm2", "prompt": PROMPT, "max_tokens": 12, **fields})


# -- n, seeds, beams


def test_n_choices_differ_and_are_numbered(gateway: httpx.Client) -> None:
    body = ok(chat(gateway, n=3, temperature=1.0, seed=5))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) > 1


def test_n_choices_streamed_each_end_once(gateway: httpx.Client) -> None:
    found: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for chunk in chunks(chat(gateway, n=3, temperature=1.0, seed=5, stream=True).content):
        for choice in chunk["choices"]:
            if choice.get("finish_reason"):
                found[choice["index"]].append(choice["finish_reason"])
    assert all(len(reasons) == 1 for reasons in found.values())


@pytest.mark.parametrize("stream", [False, True])
def test_friendli_n_choices_report_their_seeds(gateway: httpx.Client, stream: bool) -> None:
    response = text(gateway, FRIENDLI, n=2, seed=[7, 8], stream=stream)
    body = friendli_events(response.content)[-1] if stream else ok(response)
    assert [choice["seed"] for choice in body["choices"]] == [7, 8]


@pytest.mark.parametrize("path", [TEXT, FRIENDLI])
def test_a_seed_makes_the_same_text_again(gateway: httpx.Client, path: str) -> None:
    one, two = (ok(text(gateway, path, seed=11, temperature=1.0))["choices"][0]["text"] for _ in range(2))
    assert one == two


def test_choice_i_has_the_seed_plus_i(gateway: httpx.Client) -> None:
    both = ok(text(gateway, FRIENDLI, n=2, seed=[7, 8]))["choices"]
    second = ok(text(gateway, FRIENDLI, seed=8))["choices"]
    assert both[1]["tokens"] == second[0]["tokens"]


def test_a_seed_that_was_drawn_can_be_used_again(gateway: httpx.Client) -> None:
    (first,) = ok(text(gateway, FRIENDLI))["choices"]
    (again,) = ok(text(gateway, FRIENDLI, seed=first["seed"]))["choices"]
    assert again["tokens"] == first["tokens"]


def test_beam_search_answers_one_beam(gateway: httpx.Client, engine: httpx.Client) -> None:
    fields = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 8}
    straight = engine.post("/v1/completions", json={**fields, "use_beam_search": True, "n": 3, "temperature": 0}).json()
    (choice,) = ok(text(gateway, FRIENDLI, num_beams=3, max_tokens=8))["choices"]
    assert choice["text"] in [beam["text"] for beam in straight["choices"]]  # near ties change places with the cache


def test_a_length_penalty_reaches_the_beams(gateway: httpx.Client) -> None:
    assert ok(text(gateway, FRIENDLI, num_beams=2, length_penalty=0.1))["choices"][0]["text"]


def test_more_beams_than_the_engine_has_are_refused_by_name(gateway: httpx.Client) -> None:
    response = text(gateway, FRIENDLI, num_beams=31)
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "num_beams"


# -- defaults


@pytest.mark.parametrize(
    ("path", "fields", "varies"),
    [
        (TEXT, {"prompt": PROMPT}, False),  # OpenAI's wire is passed on as it came: the model's own default
        (FRIENDLI, {"prompt": PROMPT}, True),
        ("/friendli/v1/chat/completions", {"messages": MESSAGES}, True),
        ("/azure/chat/completions?api-version=2024-05-01-preview", {"messages": MESSAGES}, True),
    ],
)
def test_a_promised_temperature_outweighs_the_models_own(
    gateway: httpx.Client, path: str, fields: dict[str, Any], varies: bool
) -> None:
    """The test model's generation_config.json says 0.01 (scripts/smollm2.py), the specifications say 1."""
    said = set()
    for seed in range(4):
        # As cold as that the first words are always the same, and few of those that follow.
        length = 24 if varies else 6
        choice = ok(gateway.post(path, json={**fields, "max_tokens": length, "seed": seed}))["choices"][0]
        said.add(choice["text"] if "text" in choice else choice["message"]["content"])
    assert (len(said) > 1) is varies


# -- token ids


@pytest.mark.parametrize("stream", [False, True])
def test_friendli_ids_are_those_of_the_engine(gateway: httpx.Client, engine: httpx.Client, stream: bool) -> None:
    response = text(gateway, FRIENDLI, max_tokens=24, temperature=0, stream=stream)
    if stream:
        *sampled, last = friendli_events(response.content)
        ids, said = [event["token"] for event in sampled], last["choices"][0]
    else:
        said = ok(response)["choices"][0]
        ids = said["tokens"]
    assert said["tokens"] == ids
    back = engine.post("/detokenize", json={"model": "smollm2", "tokens": ids}).json()["prompt"]
    assert back == said["text"]
    fields = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    straight = engine.post("/v1/completions", json=fields).json()["choices"][0]["token_ids"]
    assert straight[: len(ids)] == ids
    assert len(straight) - len(ids) in (0, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_the_token_that_ended_a_choice_is_not_shown(gateway: httpx.Client, engine: httpx.Client, stream: bool) -> None:
    prompt = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes"
    response = text(gateway, FRIENDLI, prompt=prompt, max_tokens=60, temperature=0, stream=stream)
    choice = friendli_events(response.content)[-1]["choices"][0] if stream else ok(response)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert (
        engine.post("/detokenize", json={"model": "smollm2", "tokens": choice["tokens"]}).json()["prompt"]
        == (choice["text"])
    )


def test_a_prompt_of_ids_is_the_prompt(gateway: httpx.Client, engine: httpx.Client) -> None:
    ids = engine.post("/tokenize", json={"model": "smollm2", "prompt": PROMPT}).json()["tokens"]
    as_text = ok(text(gateway, FRIENDLI, temperature=0))
    response = gateway.post(FRIENDLI, json={"tokens": ids, "max_tokens": 12, "temperature": 0})
    assert ok(response)["choices"][0]["tokens"] == as_text["choices"][0]["tokens"]
    assert ok(response)["usage"] == as_text["usage"]


def test_arrays_of_prompts_answer_in_order(gateway: httpx.Client, engine: httpx.Client) -> None:
    prompts = [PROMPT, "One, two, three,"]
    body = ok(text(gateway, prompt=prompts, temperature=0))
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        assert choice["text"] == ok(text(gateway, prompt=prompt, temperature=0))["choices"][0]["text"]
    ids = [engine.post("/tokenize", json={"model": "smollm2", "prompt": one}).json()["tokens"] for one in prompts]
    assert [one["text"] for one in ok(text(gateway, prompt=ids, temperature=0))["choices"]] == [
        one["text"] for one in body["choices"]
    ]


# -- stops


def test_a_stop_string_ends_and_is_not_shown(gateway: httpx.Client) -> None:
    choice = ok(text(gateway, prompt="1, 2, 3, 4,", stop=[" 7"], temperature=0, max_tokens=30))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert " 7" not in choice["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_friendli_stop_strings(gateway: httpx.Client, stream: bool) -> None:
    fields = {"prompt": "1, 2, 3, 4,", "stop": [" 7"], "temperature": 0, "max_tokens": 30}
    response = text(gateway, FRIENDLI, **fields, stream=stream)
    if stream:
        answer = friendli_stream(response.content)
        said, reason = answer.text, answer.reason
    else:
        choice = ok(response)["choices"][0]
        said, reason = choice["text"], choice["finish_reason"]
    assert reason == "stop"
    assert " 7" not in said
    assert "6" in said


@pytest.mark.parametrize("field", ["stop_tokens", "eos_token"])
def test_friendli_stop_tokens(gateway: httpx.Client, field: str) -> None:
    free = ok(text(gateway, FRIENDLI, temperature=0))["choices"][0]["tokens"]
    end = free[3]
    value: Any = [{"tokens": [end]}] if field == "stop_tokens" else [end]
    choice = ok(text(gateway, FRIENDLI, temperature=0, **{field: value}))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["tokens"] == free[: free.index(end)]


# -- logprobs


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat(gateway: httpx.Client, stream: bool) -> None:
    response = chat(gateway, logprobs=True, top_logprobs=2, temperature=0, max_tokens=4, stream=stream)
    if stream:
        every = [choice for chunk in chunks(response.content) for choice in chunk["choices"]]
        found = [one for choice in every if choice.get("logprobs") for one in choice["logprobs"]["content"]]
    else:
        found = ok(response)["choices"][0]["logprobs"]["content"]
    assert len(found) == 4
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in found)


def test_logprobs_of_a_text(gateway: httpx.Client) -> None:
    found = ok(text(gateway, logprobs=2, temperature=0, max_tokens=4))["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_friendli(gateway: httpx.Client, stream: bool) -> None:
    response = text(gateway, FRIENDLI, include_output_logprobs=True, max_tokens=4, stream=stream)
    choice = friendli_events(response.content)[-1]["choices"][0] if stream else ok(response)["choices"][0]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["tokens"])


# -- formats


@pytest.mark.parametrize(
    ("path", "format"),
    [
        (CHAT, {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}),
        ("/sagemaker/invocations", {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}),
        (
            "/azure/chat/completions?api-version=2024-05-01-preview",
            {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        ),
        ("/ollama/chat/completions", {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}),
        ("/friendli/v1/chat/completions", {"type": "json_object", "schema": json.dumps(PERSON)}),
    ],
)
def test_a_schema_is_kept_in_every_dialect(gateway: httpx.Client, path: str, format: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "response_format": format, "max_tokens": 60, "temperature": 0}
    if not path.startswith("/azure"):
        body["model"] = "smollm2"
    answer = ok(gateway.post(path, json=body))
    message = answer["choices"][0]["message"] if "choices" in answer else answer["message"]
    person = json.loads(message["content"])
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


@pytest.mark.parametrize("schema", [json.dumps(PERSON), None])
def test_json_of_friendli(gateway: httpx.Client, schema: str | None) -> None:
    format = {"type": "json_object", **({"schema": schema} if schema else {})}
    said = ok(text(gateway, FRIENDLI, response_format=format, max_tokens=200, temperature=0))["choices"][0]
    if said["finish_reason"] == "stop":
        assert isinstance(json.loads(said["text"]), dict)
    else:
        assert said["text"].lstrip().startswith("{")
        assert schema is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_pattern_of_friendli(gateway: httpx.Client, stream: bool) -> None:
    format = {"type": "regex", "schema": "[0-9]{3}-[a-f]{2}"}
    response = text(gateway, FRIENDLI, response_format=format, max_tokens=20, stream=stream)
    said = friendli_stream(response.content).text if stream else ok(response)["choices"][0]["text"]
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", said)


# -- tools


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_openai(gateway: httpx.Client, choice: Any, stream: bool) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "temperature": 0, "max_tokens": 80, "stream": stream}
    response = chat(gateway, **fields)
    if stream:
        name, arguments, reason = "", "", None
        for chunk in chunks(response.content):
            for one in chunk["choices"]:
                reason = one.get("finish_reason") or reason
                for call in one["delta"].get("tool_calls") or []:
                    name += call["function"].get("name") or ""
                    arguments += call["function"].get("arguments") or ""
    else:
        one = ok(response)["choices"][0]
        (call, *_) = one["message"]["tool_calls"]
        name, arguments, reason = call["function"]["name"], call["function"]["arguments"], one["finish_reason"]
    assert name.startswith("get_weather")
    if choice != "required":
        assert isinstance(json.loads(arguments)["city"], str)
    # vLLM says `stop` for a call that was named, `tool_calls` for one that was only required.
    assert reason in ("tool_calls", "stop")


@pytest.mark.parametrize(
    "path",
    [
        "/sagemaker/invocations",
        "/azure/chat/completions?api-version=2024-05-01-preview",
        "/ollama/chat/completions",
        "/friendli/v1/chat/completions",
    ],
)
def test_a_named_tool_is_called_in_every_dialect(gateway: httpx.Client, path: str) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": named, "max_tokens": 80, "temperature": 0}
    if not path.startswith("/azure"):
        body["model"] = "smollm2"
    answer = ok(gateway.post(path, json=body))
    message = answer["choices"][0]["message"] if "choices" in answer else answer["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    arguments = call["function"]["arguments"]
    assert "city" in (json.loads(arguments) if isinstance(arguments, str) else arguments)


def test_a_result_of_a_tool_is_read(gateway: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert ok(chat(gateway, messages=messages, tools=[TOOL]))["choices"][0]["message"]


def test_no_tools_at_all_may_be_an_empty_list(gateway: httpx.Client) -> None:
    assert ok(chat(gateway, tools=[], tool_choice="auto"))["choices"]


# -- what our own logits processor does


def _grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]


@pytest.mark.parametrize("stream", [False, True])
def test_no_ngram_comes_twice(gateway: httpx.Client, engine: httpx.Client, stream: bool) -> None:
    prompt = "red, green, red, green, red, green, red,"
    fields = {"prompt": prompt, "temperature": 0, "max_tokens": 40}
    ids = engine.post("/tokenize", json={"model": "smollm2", "prompt": prompt}).json()["tokens"]
    plain = ok(text(gateway, FRIENDLI, **fields))["choices"][0]["tokens"]
    grams = _grams(plain, 2)
    assert len(set(grams)) < len(grams)  # it repeats itself when left alone
    response = text(gateway, FRIENDLI, **fields, no_repeat_ngram=2, stream=stream)
    found = (friendli_events(response.content)[-1] if stream else ok(response))["choices"][0]["tokens"]
    grams = _grams(found, 2)
    assert len(set(grams)) == len(grams)
    # For decoder-only models the prompt counts too.
    assert not set(grams) & set(_grams(ids, 2))


def test_sequences_of_tokens_that_must_not_occur(gateway: httpx.Client) -> None:
    free = ok(text(gateway, FRIENDLI, temperature=0))["choices"][0]["tokens"]
    bad = [{"tokens": free[1:3]}, {"tokens": [free[5]]}]
    found = ok(text(gateway, FRIENDLI, temperature=0, bad_word_tokens=bad))["choices"][0]["tokens"]
    assert found[:2] == free[:2]
    assert found[2] != free[2]
    assert tuple(free[1:3]) not in _grams(found, 2)
    assert free[5] not in found


def test_requests_with_and_without_it_share_a_batch(gateway: httpx.Client) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> list[int]:
        fields = {"no_repeat_ngram": 2} if number % 2 else {}
        prompt = f"{number} and {number} and {number} and"
        choice = ok(text(gateway, FRIENDLI, prompt=prompt, temperature=0, max_tokens=24 + number, **fields))
        tokens: list[int] = choice["choices"][0]["tokens"]
        return tokens

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(6)))
    for number, ids in enumerate(found):
        grams = _grams(ids, 2)
        if number % 2:
            assert len(set(grams)) == len(grams)

"""The laws of rankings, scores and tokens, by their numbers in the notes on their recorded clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway import backends, dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Estimator
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Score
from gateway.core.ports import Capabilities, Settings
from gateway.dialects.rerank.replies import TEI_ERRORS
from gateway.translation.offline import Refused, send
from tests.support.harness import Stack
from tests.unit.app.asking import FORGOTTEN, key

LAWS = 12
"""How many there are: tests/repo looks for a test of each."""

DIALECT = dialects.create("rerank", Settings())
RANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
QUERY = "which animal purrs"
DOCUMENTS = ["a dog barks", "the animal that purrs is a cat", "fish swim", "which animal purrs and bites"]
MIXED = [DOCUMENTS[0], {"text": DOCUMENTS[1], "id": 7}, {"text": DOCUMENTS[2]}, DOCUMENTS[3]]
LIMITS = [{"name": "tpm", "kind": "tokens", "limit": 100_000, "scope": []}]
# Operation -> the least body and every path.
ASKS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "rerank": (RANKS, {"model": "m", "query": QUERY, "documents": DOCUMENTS}),
    "score": (("/score", "/v1/score"), {"model": "m", "queries": QUERY, "documents": DOCUMENTS}),
    "tokenize": (("/tokenize",), {"model": "m", "prompt": "hi"}),
    "detokenize": (("/detokenize",), {"model": "m", "tokens": [300]}),
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    models = {"generates": {**FORGOTTEN, "features": ["completions"]}}
    config = {"breaker": {"failures": 10_000}, "models": models, "limits": LIMITS}
    with Stack(workers=({"itl_ms": 1},), config=config) as made:
        yield made


def ranked(client: httpx.Client, path: str = "/v2/rerank", **members: Any) -> Any:
    given = {"model": "m", "query": QUERY, "documents": DOCUMENTS, **members}
    reply = client.post(path, json={name: value for name, value in given.items() if value is not None})
    assert reply.status_code == 200, reply.text
    return reply.json()


def order(reply: Any) -> list[tuple[int, float]]:
    return [(one["index"], one["relevance_score"]) for one in reply["results"]]


def refused(client: httpx.Client, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json={"model": "m", **body})
    assert reply.status_code == status, reply.text
    told: dict[str, Any] = reply.json()
    assert told["message"] == told["detail"] == told["error"]["message"]
    return told


def sent(backend: str = "vllm", route: str = "rerank", **body: Any) -> Any:
    asked = json.dumps({"query": "q", "documents": ["a"], **body} if route.startswith("rerank") else body).encode()
    return send(DIALECT, backends.create(backend), asked, Capabilities("w"), route=route).outgoing


# -- 1: one order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top", "count"), [(None, 4), (2, 2), (99, 4)])
def test_law_1_every_path_ranks_alike(client: httpx.Client, top: int | None, count: int) -> None:
    whole = order(ranked(client))
    for path in RANKS:
        assert order(ranked(client, path, top_n=top)) == whole[:count]
    scores = [score for _, score in whole]
    assert scores == sorted(scores, reverse=True)
    assert {index for index, _ in whole} == set(range(4)), "places in the request"
    assert whole[0][0] in (1, 3), "the best has the query's words"


def test_law_1_of_equals_the_first_comes_first() -> None:
    backend = backends.create("vllm")
    crossing = send(DIALECT, backend, b'{"query":"q","documents":["a","b","c"]}', Capabilities("w"), route="rerank_v2")
    assert isinstance(crossing.op, Score)
    results = [{"index": index, "relevance_score": score} for index, score in ((2, 0.5), (0, 0.5), (1, 0.9))]
    said = backend.read_scores(Response(200, [JSON_TYPE], json.dumps({"results": results}).encode()), crossing.op)
    told = json.loads(DIALECT.write(said, crossing.op).body)["results"]
    assert [one["index"] for one in told] == [1, 0, 2]


def test_law_1_the_worker_gets_the_whole_list_once() -> None:
    body = json.loads(sent(top_n=1, documents=DOCUMENTS).body)
    assert body["documents"] == DOCUMENTS
    assert "top_n" not in body


# -- 2: forms of documents --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RANKS)
def test_law_2_objects_rank_as_their_texts(client: httpx.Client, path: str) -> None:
    assert order(ranked(client, path, documents=MIXED)) == order(ranked(client, path))


def test_law_2_workers_get_texts() -> None:
    assert json.loads(sent(documents=MIXED).body)["documents"] == DOCUMENTS
    fields = json.loads(sent(documents=[{"b": "2", "a": "1", "c": 3}], rank_fields=["a", "b", "c"]).body)
    assert fields["documents"] == ["1\n2"]
    assert json.loads(sent(documents="one").body)["documents"] == ["one"]
    assert json.loads(sent(query={"text": "q"}).body)["query"] == "q"


def test_a_field_is_ranked_once() -> None:
    """A large text could else be repeated for a few bytes."""
    told = sent(documents=[{"a": "x" * 1000, "b": "y"}], rank_fields=["a", "b", *["a"] * 60])
    assert json.loads(told.body)["documents"] == ["x" * 1000 + "\ny"]


@pytest.mark.parametrize("document", [{"image": "http://x/y.png"}, {"text": 5}, {}, 5, None, ["a"]])
def test_law_2_what_has_no_text_is_named(client: httpx.Client, document: Any) -> None:
    assert "documents" in refused(client, "/v1/rerank", query="q", documents=["a", document])["error"]["param"]


# -- 3: documents in the reply ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RANKS)
@pytest.mark.parametrize("asked", [None, True, False])
def test_law_3_documents_are_returned(client: httpx.Client, path: str, asked: bool | None) -> None:
    shown = path != "/v2/rerank" if asked is None else asked
    reply = ranked(client, path, documents=MIXED, return_documents=asked)
    for one in reply["results"]:
        own = MIXED[one["index"]]
        wanted = own if isinstance(own, dict) else {"text": own}
        assert one.get("document") == (wanted if shown else None), "the client's own"


# -- 4: keys ----------------------------------------------------------------------------------------------------------


def test_law_4_every_path_needs_a_key() -> None:
    secret, keys = key("app")
    headers = {"authorization": f"Bearer {secret}"}
    with Stack(config={"auth": "keys", "keys": keys}) as stack:
        for path, body in ((path, body) for paths, body in ASKS.values() for path in paths):
            assert httpx.post(stack.url + path, json=body).status_code == 401, path
            assert httpx.post(stack.url + path, json=body, headers=headers).status_code == 200, path
        assert httpx.get(stack.url + "/tokenizer_info", headers=headers).status_code == 404, "it has the chat template"
    served = {(route.method, route.path) for route in DIALECT.routes}
    assert served == {("POST", path) for paths, _ in ASKS.values() for path in paths}, "the table has every path"
    assert not any(route.open for route in DIALECT.routes)


# -- 5: inability -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*RANKS, "/score"])
def test_law_5_a_model_that_cannot_is_refused_unasked(client: httpx.Client, path: str) -> None:
    """There is nobody at its worker's address."""
    members: dict[str, Any] = {"queries" if path == "/score" else "query": "q", "documents": ["a"]}
    told = refused(client, path, model="generates", **members)
    assert told["error"]["code"] == "beyond_model"
    assert ("id" in told) == (path == "/v2/rerank")


def test_law_5_a_client_of_tei_is_told_in_its_form(client: httpx.Client) -> None:
    reply = client.post("/rerank", json={"model": "generates", "query": "q", "texts": ["a"]})
    assert (reply.status_code, reply.json()["error_type"]) == (422, "Validation")


@pytest.mark.parametrize("status", [404, 501])
def test_law_5_a_worker_that_turns_out_not_to_rank_has_not_failed(stack: Stack, status: int) -> None:
    stack.sim.fault(f"status:{status}", count=1)
    body = {"model": "m", "query": "q", "documents": ["a"]}
    reply = httpx.post(stack.url + "/v1/rerank", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "beyond_model")
    record = stack.record()
    assert (record["outcome"], record["attempts"]) == ("refused", 1)


def test_law_5_only_a_missing_path_is_the_models_inability() -> None:
    """A worker that does not know the model's name is configured wrongly."""
    op = Score(model="m", queries=("q",), documents=("a",))
    for name in sorted(backends.REGISTRY.keys() - {"tgi"}):
        backend = backends.create(name)
        missing = backend.fault(Response(404, [JSON_TYPE], b'{"detail":"Not Found"}'), op)
        assert (missing.kind, missing.code) == (Kind.UNSUPPORTED, "beyond_model")
        unknown = b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}'
        assert backend.fault(Response(404, [JSON_TYPE], unknown), op).kind is Kind.UPSTREAM
        assert backend.fault(Response(404, [JSON_TYPE], b'{"detail":"Not Found"}')).kind is Kind.UPSTREAM


# -- 6: Cohere's clients ----------------------------------------------------------------------------------------------


def test_law_6_the_reply_has_what_coheres_clients_read(client: httpx.Client) -> None:
    """The clients themselves are run in tests/acceptance/libraries."""
    for path, version in (("/v1/rerank", "1"), ("/v2/rerank", "2")):
        reply = ranked(client, path)
        assert reply["id"].startswith("rerank-")
        assert reply["meta"] == {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
        assert (reply["object"], reply["model"]) == ("list", "m"), "Jina's"
    many = ranked(client, documents=["a"] * 101)
    assert many["meta"]["billed_units"]["search_units"] == 2


@pytest.mark.parametrize("kind", Kind)
def test_law_6_an_error_has_a_message_for_each_of_them(kind: Kind) -> None:
    response, _ = DIALECT.refuse(GatewayError(kind, "told"), None, None)
    body = json.loads(response.body)
    assert body["message"] == body["detail"] == body["error"]["message"] == "told"
    assert response.status == DIALECT.errors[kind][0]


# -- 7: TEI -----------------------------------------------------------------------------------------------------------


def test_law_7_an_error_has_a_status_that_tei_gives() -> None:
    assert {status for status, _ in TEI_ERRORS.values()} == {413, 422, 424, 429, 500, 503}


@pytest.mark.parametrize("text", [None, True, False])
def test_law_7_texts_get_a_bare_list(client: httpx.Client, text: bool | None) -> None:
    reply = ranked(client, "/rerank", documents=None, texts=DOCUMENTS, return_text=text, truncate=False)
    assert [(one["index"], one["score"]) for one in reply] == order(ranked(client))
    assert [one.get("text") for one in reply] == [DOCUMENTS[one["index"]] if text else None for one in reply]


def test_law_7_raw_scores_are_the_models_own(client: httpx.Client) -> None:
    raw = ranked(client, "/rerank", documents=None, texts=DOCUMENTS, raw_scores=True)
    assert [one["index"] for one in raw] == [index for index, _ in order(ranked(client))]
    assert any(not 0 <= one["score"] <= 1 for one in raw)


# -- 8: scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
)
def test_law_8_scores_keep_the_order(client: httpx.Client, path: str, first: str, second: str) -> None:
    wanted = dict(order(ranked(client)))
    reply = client.post(path, json={"model": "m", first: QUERY, second: DOCUMENTS}).json()
    assert [(one["index"], one["object"], one["score"]) for one in reply["data"]] == [
        (index, "score", wanted[index]) for index in range(4)
    ]
    assert reply["id"].startswith("score-")
    pairs = client.post(path, json={"model": "m", first: [QUERY] * 4, second: DOCUMENTS}).json()
    assert [one["score"] for one in pairs["data"]] == [one["score"] for one in reply["data"]]
    single = client.post(path, json={"model": "m", first: QUERY, second: DOCUMENTS[0]}).json()
    assert [one["score"] for one in single["data"]] == [wanted[0]]


def test_law_8_pairs_are_pairs(client: httpx.Client) -> None:
    both = [QUERY, "what barks"], [DOCUMENTS[1], DOCUMENTS[0]]
    reply = client.post("/score", json={"model": "m", "queries": both[0], "documents": both[1]}).json()
    for query, document, one in zip(*both, reply["data"], strict=True):
        alone = client.post("/score", json={"model": "m", "queries": query, "documents": document}).json()
        assert alone["data"][0]["score"] == one["score"]


def test_law_8_lengths_and_names_that_do_not_fit(client: httpx.Client) -> None:
    for body in (
        {"queries": ["a", "b"], "documents": ["a"]},
        {"queries": "a", "data_1": "b", "documents": ["a"]},
        {"documents": ["a"], "items": ["a"], "queries": "a"},
        {"documents": "a"},
    ):
        assert refused(client, "/score", **body)["error"]["param"] == (
            "queries" if "items" not in body else "documents"
        )


@pytest.mark.parametrize("backend", ["openai", "llamacpp"])
def test_law_8_several_queries_need_a_worker_that_takes_pairs(backend: str) -> None:
    assert json.loads(sent(backend, "score", queries=["q"], documents=["a", "b"]).body)["query"] == "q"
    with pytest.raises(Refused) as refusal:
        sent(backend, "score", data_1=["q", "r"], data_2=["a", "b"])
    assert json.loads(refusal.value.response.body)["error"]["param"] == "data_1"


# -- 9: tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["hello world", "Grüezi 你好 👩‍🚀", "", " \n"])
def test_law_9_there_and_back(client: httpx.Client, text: str) -> None:
    asked = {"model": "m", "prompt": text, "add_special_tokens": False, "return_token_strs": True}
    told = client.post("/tokenize", json=asked).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] > 0
    if told["tokens"]:
        back = client.post("/detokenize", json={"model": "m", "tokens": told["tokens"]})
        assert back.json() == {"prompt": text}


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_law_9_a_chat_has_the_tokens_that_its_prompt_counts(client: httpx.Client, tools: Any) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüezi"}]
    asked = {"model": "m", "messages": talk, **({"tools": tools} if tools else {})}
    chat = client.post("/v1/chat/completions", json={**asked, "max_tokens": 2}).json()
    told = client.post("/tokenize", json=asked).json()
    assert told["count"] == chat["usage"]["prompt_tokens"]
    assert told["token_strs"] is None


def test_law_9_special_tokens_are_asked_for_as_vllm_does() -> None:
    talk = [{"role": "user", "content": "hi"}]
    for body, special in (({"prompt": "a"}, True), ({"messages": talk}, False)):
        assert json.loads(sent(route="tokenize", **body).body)["add_special_tokens"] is special
        for asked in (True, False):
            body_sent = json.loads(sent(route="tokenize", **body, add_special_tokens=asked).body)
            assert body_sent["add_special_tokens"] is asked
    continued = json.loads(sent(route="tokenize", messages=talk, continue_final_message=True).body)
    assert (continued["continue_final_message"], continued["add_generation_prompt"]) == (True, False)


def test_law_9_questions_pass_the_limits_by(client: httpx.Client, stack: Stack) -> None:
    """As counts of tokens do: the model has no work."""
    client.post("/tokenize", json={"model": "m", "prompt": "a"})
    record = stack.record()
    assert (record["operation"], record["outcome"], record["usage"]) == ("tokenize", "ok", None)


# -- 10: nothing to do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "q", "documents": []}),
        ("/v2/rerank", {"query": " \n", "documents": ["a"]}),
        ("/v1/rerank", {"query": "q"}),
        ("/v1/rerank", {"documents": ["a"]}),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 10_001}),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "rank_fields": ["a"] * 65}),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "truncation_direction": "up"}),
        ("/score", {"queries": "q", "documents": ["a"], "truncate_prompt_tokens": -2}),
        ("/score", {"queries": [], "documents": ["a"]}),
        ("/score", {"queries": "q", "documents": []}),
        ("/score", {"queries": ["q", " "], "documents": ["a", "b"]}),
        ("/tokenize", {}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True,
                       "continue_final_message": True}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**31]}),
    ],
)  # fmt: skip
def test_law_10_nothing_or_too_much_to_do(stack: Stack, client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    before = stack.sim.ledger.received
    named = refused(client, path, **body)["error"]["param"].split(".")[0]
    assert named in {*body, "query", "documents", "prompt", "queries"}
    assert stack.sim.ledger.received == before


def test_law_10_documents_by_both_of_their_names(client: httpx.Client) -> None:
    both = {"model": "m", "query": "q", "documents": ["a"], "texts": ["a"]}
    assert client.post("/rerank", json=both).json()["error_type"] == "Validation"


# -- 11: usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["rerank", "score"])
def test_law_11_what_the_worker_read_is_charged(stack: Stack, operation: str) -> None:
    limiting = stack.gateway.deployment.offers.limiter
    assert limiting is not None
    left = []
    for path in ASKS[operation][0]:
        reply = httpx.post(stack.url + path, json=ASKS[operation][1])
        record = stack.record()
        assert record["usage"]["input"] == reply.json()["usage"]["prompt_tokens"] > 0
        assert record["usage"]["output"] == 0
        left.append(int(reply.headers["x-ratelimit-limit-tokens"]))
    assert left == [LIMITS[0]["limit"]] * len(left)


def test_law_11_the_estimate_has_the_query_once_for_each_document() -> None:
    estimate = Estimator(bytes_per_token=1)
    few = Score(model="m", queries=("q" * 100,), documents=("d" * 10,) * 3)
    assert estimate.cost(few).prompt == 3 * (100 + 10 + 8)
    pairs = Score(model="m", queries=("q" * 100,) * 3, documents=("d" * 10,) * 3)
    assert estimate.cost(pairs).prompt == estimate.cost(few).prompt
    asked = json.dumps({"query": "q", "documents": ["a", "b"], "instruction": "i" * 50}).encode()
    told = send(DIALECT, backends.create("vllm"), asked, Capabilities("w"), route="rerank").op
    assert estimate.cost(told).prompt >= 2 * 50, "what the template adds to each pair counts for each"


# -- 12: numbers ------------------------------------------------------------------------------------------------------


def read(results: str, count: int = 2) -> Any:
    op = Score(model="m", queries=("q",), documents=("a",) * count)
    return backends.create("vllm").read_scores(Response(200, [JSON_TYPE], results.encode()), op)


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999", "null", '"0.5"', "true", "[]"])
def test_law_12_a_score_is_a_finite_number(score: str) -> None:
    with pytest.raises(GatewayError) as failure:
        read(f'{{"results":[{{"index":0,"relevance_score":0.5}},{{"index":1,"relevance_score":{score}}}]}}')
    assert failure.value.kind is Kind.UPSTREAM


@pytest.mark.parametrize("indices", [(0, 0), (0, 2), (0, -1), (0,), (0, 1, 1)])
def test_law_12_every_document_has_one_score(indices: tuple[int, ...]) -> None:
    results = [{"index": index, "relevance_score": 0.5} for index in indices]
    with pytest.raises(GatewayError) as failure:
        read(json.dumps({"results": results}))
    assert failure.value.kind is Kind.UPSTREAM


def test_law_12_scores_are_passed_on_as_they_are() -> None:
    assert read('{"data":[{"index":1,"score":-7.25},{"index":0,"score":1e-12}]}').scores == (1e-12, -7.25)
    with pytest.raises(GatewayError):
        read('{"error":{"message":"CUDA error","code":500}}')


def test_both_forms_are_tokenized_as_a_chat_and_nothing_is_the_text_of_no_tokens(client: httpx.Client) -> None:
    """As vLLM answers."""
    talk = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    both = client.post("/tokenize", json={**talk, "prompt": "a"})
    assert both.json() == client.post("/tokenize", json=talk).json()
    assert both.headers["x-dragoman-dropped"] == "prompt"
    assert client.post("/detokenize", json={"model": "m", "tokens": []}).json() == {"prompt": ""}


@pytest.mark.long
def test_documents_take_a_step_for_each_member_however_many_fields_rank_them() -> None:
    documents = [{"text": "a", "f7": "b"}] * 10_000

    def seconds(fields: list[str]) -> float:
        body = {"model": "m", "query": "q", "documents": documents, "rank_fields": fields}
        request = Request("POST", "/rerank", [JSON_TYPE], json.dumps(body).encode(), b"", "rerank_v1", {}, "1")
        best = 1e9
        for _ in range(5):
            began = time.process_time()
            asked = DIALECT.read(request)
            best = min(best, time.process_time() - began)
        assert isinstance(asked, Score)
        assert asked.documents[-1] == ("b\na" if len(fields) > 1 else "a")
        return best

    many = [f"f{number}" for number in range(63)]
    assert seconds([*many, "text"]) < 2 * seconds(["text"])

"""`compat: litellm`: the paths below `/v1` answer without it, too, and those that LiteLLM alone has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import KNOWN
from gateway.app.routes import Line, route_table
from gateway.config import Config, ConfigError, load
from gateway.core.messages import ModelCard
from gateway.core.money import Rates, Tariff
from gateway.features.litellm.answers import _model
from tests.support.clients import MEDIA, WAYS
from tests.support.harness import Stack
from tests.support.sampled import of_dialect, sampled
from tests.unit.app.asking import GONE, key

ON = {"compat": "litellm"}
OWN = {"key_info", "model_info", "readiness", "liveness"}
LIMITS = {"requests": 50, "tokens": 7000, "concurrency": 4, "budget": "20"}
SECRET, APP = key(
    "app", team="red", models=["m"], aliases={"gpt-4o": "m"}, expires="2099-01-01T12:00:00Z", limits=LIMITS
)
FREE, FREE_ENTRY = key("free")
PRICE = {"input": 2, "cached_input": 1, "output": 4, "request": 3}
THERE = {line.path for line in route_table(Config())}
VERSIONED = [
    way
    for way in WAYS
    if (path := way.path()).startswith("/v1/") and path[3:] not in THERE and way.operation not in MEDIA
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    sections = {
        **ON,
        "keys": APP | FREE_ENTRY,
        "models": {"m": {"price": PRICE}, "able": {**GONE, "price": PRICE, "max_context": 9000, "features": ["tools"]}},
        "spend": {"currency": "USD"},
    }
    with Stack(config=sections) as running:
        yield running


def get(stack: Stack, path: str, secret: str = SECRET, **query: str) -> httpx.Response:
    shown = {"authorization": f"Bearer {secret}"} if secret else {}
    return httpx.get(stack.url + path, headers=shown, params=query, timeout=30)


def served(config: dict[str, Any]) -> dict[str, set[tuple[str, str, str, str]]]:
    found: dict[str, set[tuple[str, str, str, str]]] = {}
    for line in route_table(Config.model_validate(config)):
        found.setdefault(line.path, set()).add((line.method, line.dialect, line.name, line.when))
    return found


@pytest.mark.parametrize("more", [{}, {"redis": {"url": "redis://r"}, "batches": {"directory": "/x"}}])
def test_each_path_of_the_first_version_is_served_without_it(more: dict[str, Any]) -> None:
    """Those of all dialects and features, by the same routes; a path that was served before stays as it was."""
    before, after = served(more), served(ON | more)
    assert {path: after[path] for path in before} == before
    added = after.keys() - before.keys()
    assert {path for path in added if "/v1" + path not in before} == {
        "/key/info", "/v1/model/info", "/model/info", "/health/readiness", "/health/liveliness", "/health/liveness",
    }  # fmt: skip
    for path in before:
        alias = path.removeprefix("/v1")
        if path.startswith("/v1/") and alias not in before:
            assert before[path] == after[alias], path
    assert {"/chat/completions", "/completions", "/embeddings", "/models", "/responses", "/rerank"} <= after.keys()
    assert ("/batches" in after, "/files" in after) == (bool(more), bool(more))


@pytest.mark.parametrize("way", sampled(VERSIONED, 2, of_dialect), ids=str)
def test_the_answers_are_those_with_the_version(stack: Stack, way: Any) -> None:
    for stream in (False, True):
        if not way.answers(stream=stream):
            continue
        for name in ("m", "nothing"):
            body = {"model": name, **way.body("Nine words of text", stream=stream, max_tokens=9)}
            heard = []
            for path in (way.path(name), way.path(name).removeprefix("/v1")):
                shown = {"authorization": f"Bearer {FREE}"}
                reply = httpx.post(stack.url + path, json=body, headers=shown, timeout=30)
                heard.append((reply.status_code, told(reply), same(reply.text), facts(stack)))
            assert heard[0] == heard[1], way
            assert (heard[0][0] == 200) == (name == "m"), heard[0]


def told(reply: httpx.Response) -> set[str]:
    return {name for name in reply.headers if not name.startswith("x-dragoman-")}


def same(text: str) -> str:
    """Without what no two replies share: ids and times."""
    text = re.sub(r'[0-9a-f]{24,}|(?<="id":")[^"]*', "", text)
    return re.sub(r'"(created|created_at|completed_at)": ?[0-9.]+', r'"\1":0', text)


def facts(stack: Stack) -> dict[str, Any]:
    names = ("dialect", "operation", "model", "key", "status", "outcome", "code", "stream", "usage")
    record = stack.record()
    return {name: record.get(name) for name in names}


@pytest.mark.parametrize("path", ["/models", "/models/m", "/models/nothing"])
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}, {"x-goog-api-key": FREE}])
def test_lists_of_models_too(stack: Stack, path: str, headers: dict[str, str]) -> None:
    shown = {"authorization": f"Bearer {FREE}", **headers}
    one, other = (httpx.get(stack.url + place + path, headers=shown) for place in ("/v1", ""))
    assert (one.status_code, same(one.text)) == (other.status_code, same(other.text))
    assert one.status_code == (404 if path.endswith("nothing") else 200)


def test_without_the_option_nothing_is_there() -> None:
    with Stack() as plain:
        for path in ("/chat/completions", "/models", "/key/info", "/v1/model/info", "/health/readiness"):
            assert httpx.get(plain.url + path).status_code == 404, path


@pytest.mark.parametrize("value", ["openai", "LiteLLM", True, ["litellm"]])
def test_another_value_is_refused(value: object, tmp_path: Path) -> None:
    assert "compat" in refused({"compat": value}, tmp_path)


def test_a_dialect_that_has_such_a_path_itself_is_in_the_way(tmp_path: Path) -> None:
    moved = {"dialects": {"azure_inference": {"prefixes": ["/"], "default_model": "m"}}}
    assert refused(moved, tmp_path) == ""
    assert "answers POST /chat/completions as openai does" in refused(ON | moved, tmp_path)


def refused(sections: dict[str, Any], folder: Path) -> str:
    (folder / "gateway.yaml").write_text(
        json.dumps({"models": {"m": {"backend": "vllm", "workers": ["http://a"]}}, **sections})
    )
    try:
        load(folder / "gateway.yaml", KNOWN, {})
    except ConfigError as error:
        return str(error)
    return ""


def test_a_key_is_shown_what_it_may_do_and_has_spent(stack: Stack) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "a"}]}
    shown = {"authorization": f"Bearer {SECRET}"}
    assert httpx.post(stack.url + "/chat/completions", json=body, headers=shown, timeout=30).status_code == 200
    stack.record()
    found = get(stack, "/key/info").json()
    info = found["info"]
    assert found["key"] == sha256(SECRET.encode()).hexdigest()
    assert (info["key_alias"], info["team_id"], info["models"]) == ("app", "red", ["m"])
    assert (info["aliases"], info["expires"]) == ({"gpt-4o": "m"}, "2099-01-01T12:00:00Z")
    assert (info["rpm_limit"], info["tpm_limit"], info["max_parallel_requests"]) == (50, 7000, 4)
    assert (info["max_budget"], info["budget_duration"]) == (20, "1mo")
    assert 3 <= info["spend"] < 3.1
    assert datetime.fromisoformat(info["budget_reset_at"]) > datetime.now(UTC)
    assert stack.record()["operation"] == "key_info"


def test_a_key_without_limits_says_so(stack: Stack) -> None:
    """LiteLLM has an empty list for all models, and null for no limit."""
    info = get(stack, "/key/info", FREE).json()["info"]
    nothing = ("rpm_limit", "tpm_limit", "max_parallel_requests", "spend", "max_budget", "budget_reset_at", "expires")
    assert [info[name] for name in nothing] == [None] * len(nothing)
    assert (info["models"], info["aliases"]) == ([], {})


def test_a_key_that_may_use_no_model_is_not_shown_as_one_for_all() -> None:
    secret, entry = key("none", models=[])
    with Stack(config={**ON, "keys": entry}) as stack:
        assert get(stack, "/key/info", secret).json()["info"]["models"] == ["no-default-models"]


def test_limits_that_are_shared_are_not_the_keys() -> None:
    secret, entry = key("one")
    limits = [
        {"name": "all", "kind": "requests", "limit": 3, "scope": []},
        {"name": "hour", "kind": "requests", "limit": 9, "per_s": 3600, "scope": ["key"]},
        {"name": "watched", "kind": "tokens", "limit": 9, "scope": ["key"], "shadow": True},
    ]
    with Stack(config={**ON, "keys": entry, "limits": limits}) as stack:
        info = get(stack, "/key/info", secret).json()["info"]
        assert (info["rpm_limit"], info["tpm_limit"]) == (None, None)


def test_a_key_may_ask_for_itself_alone(stack: Stack) -> None:
    """Whether the other one is there makes no difference. Its secret is in no log."""
    own = get(stack, "/key/info").json()["key"]
    for asked in (SECRET, own):
        assert get(stack, "/key/info", key=asked).json()["key"] == own
    refusals = {get(stack, "/key/info", key=other).text for other in (FREE, sha256(FREE.encode()).hexdigest(), "sk-0")}
    assert len(refusals) == 1
    assert get(stack, "/key/info", key=FREE).status_code == 403
    assert stack.record()["code"] == "another_key"
    assert get(stack, "/key/info", "").status_code == 401
    stack.gateway.log.flush()
    assert SECRET.encode() not in stack.output.getvalue()
    assert FREE.encode() not in stack.output.getvalue()


def test_who_needs_no_key_is_shown_as_nobody() -> None:
    with Stack(config=ON) as stack:
        found = get(stack, "/key/info", "").json()
        assert (found["key"], found["info"]["key_alias"]) == (None, "anonymous")


def test_the_abilities_of_models(stack: Stack) -> None:
    (found,) = [one for one in get(stack, "/v1/model/info", FREE).json()["data"] if one["model_name"] == "able"]
    assert found["litellm_params"]["model"] == "able"
    info = found["model_info"]
    assert (info["max_input_tokens"], info["supports_function_calling"], info["supports_vision"]) == (9000, True, False)
    assert [info[f"{kind}_cost_per_token"] for kind in ("input", "output")] == pytest.approx([2e-6, 4e-6])
    assert info["cache_read_input_token_cost"] == pytest.approx(1e-6)
    assert get(stack, "/model/info").json() == get(stack, "/v1/model/info").json()
    assert {one["model_name"] for one in get(stack, "/model/info").json()["data"]} == {"m", "alias"}
    assert get(stack, "/v1/model/info", "").status_code == 401


def test_what_is_not_known_of_a_model_is_null() -> None:
    info = _model(ModelCard("m", 0, True, lacks=frozenset({"vision"})), Tariff([(1e12, Rates(1))], lambda: 0.0))
    told = info["model_info"]
    assert (told["supports_vision"], told["supports_function_calling"]) == (False, None)
    assert (told["max_tokens"], told["input_cost_per_token"]) == (None, None)


def test_health_is_for_everybody(stack: Stack) -> None:
    """As `/readyz` and `/livez`: also by HEAD."""
    assert get(stack, "/health/liveliness", "").json() == get(stack, "/health/liveness", "").json() == "I'm alive!"
    assert get(stack, "/health/readiness", "").json() == {"status": "healthy"}
    assert httpx.head(stack.url + "/health/readiness").status_code == 200
    shown = {"authorization": f"Bearer {FREE}"}
    assert httpx.post(stack.url + "/health/readiness", headers=shown).status_code == 405


def test_a_gateway_that_drains_is_not_ready() -> None:
    with Stack(config=ON) as stack:
        stack.gateway.draining = True
        reply = get(stack, "/health/readiness", "")
        assert (reply.status_code, reply.json()) == (503, {"status": "draining"})
        assert stack.record()["outcome"] == "refused"
        assert get(stack, "/health/liveliness", "").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/key/generate", "/admin/v1/keys"),
        ("POST", "/key/delete", "/admin/v1/keys"),
        ("GET", "//key/list/", "/admin/v1/keys"),
        ("GET", "/team/list", "dragoman teams"),
        ("POST", "/user/new", "`end_users`"),
        ("POST", "/model/new", "a reload"),
        ("GET", "/global/spend/report", "`dragoman spend`"),
        ("GET", "/health", "`dragoman check --probe`"),
    ],
)
def test_paths_for_operators_lead_to_what_serves_them_here(stack: Stack, method: str, path: str, named: str) -> None:
    """Other APIs have paths of these names, which are not meant."""
    reply = httpx.request(method, stack.url + path, headers={"authorization": f"Bearer {FREE}"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "unknown_path")
    assert named in error["message"]
    assert "base URL" not in error["message"]
    with Stack() as plain:
        assert named not in httpx.request(method, plain.url + path).text


def test_a_path_that_has_another_method_keeps_its_answer(stack: Stack) -> None:
    reply = httpx.post(stack.url + "/key/info", headers={"authorization": f"Bearer {FREE}"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        405,
        "POST is not allowed here; this path takes GET, HEAD",
    )


def test_each_own_path_is_known_by_its_route() -> None:
    lines: list[Line] = route_table(Config.model_validate(ON))
    assert {line.name for line in lines if line.name in OWN} == OWN

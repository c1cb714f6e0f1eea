"""A remote endpoint of OpenAI's wire: TLS by one's own CA, a key from a file, a base path, another name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.harness import Stack
from tests.support.standins.serving import Answering, certificate, server_tls, serving

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class Remote(NamedTuple):
    """A server that answers every POST with a chat, and remembers what it was asked."""

    url: str
    asked: list[tuple[str, dict[str, str], Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def remote(files: tuple[Path, Path]) -> Iterator[Remote]:
    asked: list[tuple[str, dict[str, str], Any]] = []

    class Answer(Answering):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(404, b"{}", **{"content-type": "application/json"})

        def do_POST(self) -> None:
            asked.append((self.path, self.named(), json.loads(self.posted())))
            message = {"role": "assistant", "content": "hi"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            reply = {"id": "1", "object": "chat.completion", "created": 1, "choices": choices, "usage": usage}
            self.answer(200, json.dumps(reply).encode(), **{"content-type": "application/json"})

    with serving(Answer, server_tls(files)) as url:
        yield Remote(url, asked)


def model(remote: Remote, **options: Any) -> dict[str, Any]:
    worker = {"backend": "openai", "workers": [f"{remote.url}/base"], "upstream_model": "provider/big"}
    return {"m": {**worker, **options}}


def test_everything_comes_from_the_configuration(remote: Remote, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-remote\n")
    options = {"ca_file": str(files[0]), "api_key_file": str(tmp_path / "key"), "headers": {"x-project": "p"}}
    with Stack(workers=(), config={"models": model(remote, **options)}) as stack:
        answer = httpx.post(
            f"{stack.url}/v1/chat/completions",
            json=CHAT,
            headers={"authorization": "Bearer canary", "x-project": "canary"},
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert answer.json()["model"] == "m"
    ((path, headers, body),) = remote.asked
    assert path == "/base/v1/chat/completions"
    assert body["model"] == "provider/big"
    assert headers["authorization"] == "Bearer sk-remote"
    assert headers["x-project"] == "p"
    assert headers["host"] == remote.url.removeprefix("https://")
    assert "canary" not in json.dumps([headers, body])


def test_a_certificate_of_an_unknown_authority_is_not_believed(remote: Remote) -> None:
    with Stack(workers=(), config={"models": model(remote)}) as stack:
        answer = httpx.post(f"{stack.url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert remote.asked == []

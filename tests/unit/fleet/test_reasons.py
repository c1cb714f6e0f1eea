"""`worker down` has its reason: one word in the log, the state, the metric and `dragoman check --probe`."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from gateway.core.failures import MEANINGS, Cause
from gateway.fleet.handshakes import names_in
from tests.support.commands import called
from tests.support.harness import Stack
from tests.support.ports import free_port
from tests.support.standins.serving import Answering, certificate, server_tls, serving

LISTED = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()


class Healthy(Answering):
    """A worker that is well."""

    status, listed = 200, (200, LISTED)

    def do_GET(self) -> None:
        if self.path.endswith("/v1/models"):
            self.answer(*self.listed)
        else:
            self.answer(self.status)


class KeyRefused(Healthy):
    listed = (401, b'{"error": {"message": "Incorrect API key provided"}}')


class KeyNotValid(Healthy):
    listed = (400, b'[{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}]')


class Loading(Healthy):
    status = 503


class Broken(Healthy):
    status = 500


class WantsTls(Healthy):
    """As nginx answers plain HTTP at its port for TLS."""

    def do_GET(self) -> None:
        page = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>"
        self.answer(400, page)


class Others(Healthy):
    listed = (200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode())


class AtTheRoot(Healthy):
    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(200, LISTED)
        else:
            self.answer(404)


@contextmanager
def raw(answer: bytes) -> Iterator[str]:
    """A server that sends these bytes to whoever connects, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        thread = Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


class Bad(NamedTuple):
    cause: Cause
    address: str
    ca_file: str | None = None


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bad]]:
    """Workers that are not ready, each for another reason."""
    with ExitStack() as exits:

        def tls(**options: Any) -> tuple[str, str]:
            files = certificate(tmp_path_factory.mktemp("tls"), **options)
            return exits.enter_context(serving(Healthy, server_tls(files))), str(files[0])

        def plain(handler: type[Answering]) -> str:
            return exits.enter_context(serving(handler))

        other, other_ca = tls(address="127.0.0.2")
        expired, expired_ca = tls(days=-1)
        trusted = tls()
        well = plain(Healthy)
        yield {
            "refused": Bad(Cause.REFUSED, f"http://127.0.0.1:{free_port()}"),
            "nameless": Bad(Cause.NAME_UNKNOWN, f"http://{'a' * 64}.invalid:8000"),
            "ca": Bad(Cause.CA_UNKNOWN, trusted[0]),
            "host": Bad(Cause.HOST_NOT_IN_CERTIFICATE, other, other_ca),
            "expired": Bad(Cause.CERTIFICATE_EXPIRED, expired, expired_ca),
            "plain": Bad(Cause.NOT_TLS, well.replace("http:", "https:")),
            "tls": Bad(Cause.NEEDS_TLS, exits.enter_context(raw(b"\x15\x03\x01\x00\x02\x02\x46"))),
            "nginx": Bad(Cause.NEEDS_TLS, plain(WantsTls)),
            "wordless": Bad(Cause.NEEDS_TLS, trusted[0].replace("https:", "http:")),
            "junk": Bad(Cause.MALFORMED, exits.enter_context(raw(b"SSH-2.0-OpenSSH_9.6\r\n"))),
            "closing": Bad(Cause.BROKE_OFF, exits.enter_context(raw(b""))),
            "key": Bad(Cause.KEY_REFUSED, plain(KeyRefused)),
            "key400": Bad(Cause.KEY_REFUSED, plain(KeyNotValid)),
            "loading": Bad(Cause.OVERLOADED, plain(Loading)),
            "broken": Bad(Cause.FAILED, plain(Broken)),
            "others": Bad(Cause.UNKNOWN_MODEL, plain(Others)),
            "based": Bad(Cause.WRONG_PATH, plain(AtTheRoot) + "/api"),
        }


def models(bad: dict[str, Bad]) -> dict[str, Any]:
    found = {}
    for name, one in bad.items():
        found[name] = {"backend": "openai", "workers": [one.address]}
        if one.ca_file is not None:
            found[name]["ca_file"] = one.ca_file
    return found


@pytest.fixture(scope="module")
def stack(bad: dict[str, Bad]) -> Iterator[Stack]:
    more = {"models": models(bad), "metrics": {"listen": f"127.0.0.1:{free_port()}"}}
    with Stack(({},), more) as stack:
        yield stack


NAMES = [
    *("refused", "nameless", "ca", "host", "expired", "plain", "tls", "nginx"),
    *("wordless", "junk", "closing", "key", "key400", "loading", "broken", "others", "based"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_log_the_metric_and_the_state_have_the_same_word(stack: Stack, bad: dict[str, Bad], name: str) -> None:
    cause, address, _ = bad[name]
    told = [line for line in stack.events("worker down") if line["model"] == name]
    assert [line["reason"] for line in told][:1] == [cause.value]
    assert told[0]["worker"] == address
    shown = httpx.get(stack.admin_url + "/metrics").text
    assert f'dragoman_worker_trouble{{model="{name}",reason="{cause.value}",worker="{address}"}} 1.0' in shown


def test_check_probe_has_the_same_words(stack: Stack, bad: dict[str, Bad], tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    well = {"well": {"backend": "vllm", "upstream_model": "sim", "workers": [stack.sim.url]}}
    config.write_text(yaml.dump({"models": {**models(bad), **well}, "health": {"interval_s": 10, "timeout_s": 10}}))
    found = called("check", "--probe", str(config))
    assert found.returncode == 1
    lines = {line.split()[1]: line for line in found.stderr.splitlines() if line.startswith("worker: ")}
    assert lines["well"] == f"worker: well {stack.sim.url}: ready"
    for name, (cause, address, _) in bad.items():
        assert lines[name].startswith(
            f"worker: {name} {address}: down: {cause.value}: the worker {MEANINGS[cause].text}"
        )
    assert lines["others"].endswith("; it serves first, second, and not others: set `upstream_model` to one of those")
    assert " (127.0.0.2): name it by one of those in `workers`, or mend its certificate" in lines["host"]
    count = len(bad) + 1
    assert f"{count} models, 0 keys" in found.stderr.splitlines()[-1]
    assert f": {count - 1} of {count} workers cannot serve" in found.stderr.splitlines()[-1]
    assert "hole: " not in found.stderr
    config.write_text(yaml.dump({"models": well, "health": {"interval_s": 10, "timeout_s": 10}}))
    good = called("check", "--probe", str(config))
    assert (good.returncode, ": good" in good.stdout, " worker" in good.stdout) == (0, True, False)
    well["well"]["backend"] = "openai"
    config.write_text(yaml.dump({"models": well, "health": {"interval_s": 10, "timeout_s": 10}}))
    holes = called("check", "--probe", str(config))
    assert re.search(r"good, but for \d+ holes \(parts .* --holes lists them\)$", holes.stdout.strip())
    assert "hole: " not in holes.stderr
    assert "hole: " in called("check", "--probe", "--holes", str(config)).stderr


def test_the_log_names_the_hosts_of_a_certificate(stack: Stack) -> None:
    (told,) = [line for line in stack.events("worker down") if line["model"] == "host"]
    assert told["certificate_for"] == ["127.0.0.2"]


def test_the_log_has_the_words_that_refuse_a_key(stack: Stack) -> None:
    words = {line["model"]: line.get("text") for line in stack.events("worker down")}
    assert words["key"] == "Incorrect API key provided"
    assert words["key400"] == "API key not valid. Please pass a valid API key."
    assert {name for name, text in words.items() if text is not None} == {"key", "key400"}


def test_the_state_has_the_sentence_too(stack: Stack, bad: dict[str, Bad]) -> None:
    """As `check --probe`, with the hosts of a certificate for others."""
    for model in httpx.get(stack.admin_url + "/status.json").json()["models"]:
        (worker,), name = model["workers"], model["name"]
        if name in bad:
            assert worker["meaning"].startswith(MEANINGS[bad[name].cause].text)
            assert worker["certificate_for"] == (["127.0.0.2"] if name == "host" else [])
            assert ("(127.0.0.2): name it by one of those" in worker["meaning"]) == (name == "host")
    assert "(127.0.0.2): name it" in called("status", "--once", "--url", stack.admin_url).stdout


@pytest.mark.parametrize("critical", [False, True])
@pytest.mark.parametrize("names", [("a.example", "*.b.example"), ("x" * 60 + ".example",) * 12])
def test_the_names_in_a_certificate(tmp_path: Path, names: tuple[str, ...], critical: bool) -> None:
    found = certificate(tmp_path, *names, critical=critical)[0].read_text()
    der = ssl.PEM_cert_to_DER_cert(found)
    assert names_in(der) == ["127.0.0.1", *names][:8]
    for end in range(0, len(der), 7):  # cut short, or changed: nothing is raised
        names_in(der[:end])
        names_in(der[:end] + b"\xff\x82" + der[end + 2 :])


def test_a_client_learns_which_names_are_served(stack: Stack) -> None:
    body = {"model": "others", "messages": [{"role": "user", "content": "hi"}]}
    refused = httpx.post(stack.url + "/v1/chat/completions", json=body)
    assert refused.status_code == 503
    assert "'first', 'second'" in refused.json()["error"]["message"]


def test_an_ejection_has_its_reason() -> None:
    more = {"breaker": {"failures": 1}, "models": {"m": {"policy": "round_robin"}}}
    with Stack(({"fault": "status:500"}, {}), more) as stack:
        for _ in range(4):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            httpx.post(stack.url + "/v1/chat/completions", json=body)
        (told,) = stack.events("worker ejected")
        assert (told["worker"], told["reason"]) == (stack.sim.url, "failed")
        state = stack.gateway.deployment.workers["m", stack.sim.url]
        assert state.trouble is Cause.FAILED

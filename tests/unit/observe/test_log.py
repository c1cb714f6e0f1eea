"""The log: whole records, nobody's words, and an output that nobody waits for."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.core.usage import Usage
from gateway.observe.log import Log
from tests.support.harness import Stack
from tests.support.records import seconds
from tests.unit.observe.logs import Output, record

CANARY = "canary-8d1f"


# -- records --------------------------------------------------------------------------------------------------------


def test_a_record_says_everything_that_there_is(log: Log, output: Output) -> None:
    began = time.time()
    log.request(
        record(
            operation="chat",
            model="m",
            key="k",
            team="t",
            stream=True,
            status=200,
            duration_ms=12.5,
            queue_ms=1.5,
            upstream_ms=10.25,
            time_to_first_token_ms=3.25,
            attempts=2,
            worker="http://w",
            usage=Usage(3, 5, cached=1, reasoning=2),
            dropped=("a",),
            limit="per-minute",
            asked="n",
            routed="split",
        )
    )
    log.flush()
    (line,) = output.lines()
    assert next(iter(line)) == "time"
    moment = line.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert began - 1 < seconds(moment) < time.time() + 1
    assert line == {
        "level": "info",
        "event": "request",
        "id": "id-1",
        "dialect": "openai",
        "operation": "chat",
        "model": "m",
        "key": "k",
        "team": "t",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "duration_ms": 12.5,
        "queue_ms": 1.5,
        "upstream_ms": 10.25,
        "overhead_ms": 0.0,
        "time_to_first_token_ms": 3.25,
        "attempts": 2,
        "worker": "http://w",
        "usage": {"input": 3, "output": 5, "cached": 1, "reasoning": 2, "source": "engine"},
        "dropped": ["a"],
        "limit": "per-minute",
        "asked": "n",
        "routed": "split",
    }


def test_no_line_has_a_null(log: Log, output: Output) -> None:
    log.request(record(usage=Usage(3)))
    log.event("info", "event", nothing=None, count=0)
    log.flush()
    first, second = output.lines()
    assert first["usage"] == {"input": 3, "source": "engine"}
    assert b"null" not in output.getvalue()
    assert [*second] == ["time", "level", "event", "count"]
    assert re.fullmatch(r"[0-9T:-]+\.\d{3}Z", second["time"])


@pytest.mark.parametrize(
    ("level", "requests", "written"),
    [
        ("debug", True, ["debug", "info", "request", "warning", "error"]),
        ("info", True, ["info", "request", "warning", "error"]),
        ("info", False, ["info", "warning", "error"]),
        ("warning", True, ["warning", "error"]),
        ("error", True, ["error"]),
    ],
)
def test_levels(output: Output, level: str, requests: bool, written: list[str]) -> None:
    for configured_later in (False, True):
        log = Log("error", False, output) if configured_later else Log(level, requests, output)
        log.configure(level, requests)
        log.event("debug", "debug")
        log.event("info", "info")
        log.request(record())
        log.event("warning", "warning")
        log.event("error", "error")
        log.close()
        assert [line["event"] for line in output.lines()] == written
        output.truncate(0)
        output.seek(0)


def test_what_strangers_cause_is_rationed(
    log: Log, output: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.observe.log.time", _Clock(lambda: now))
    for number in range(25):
        log.rationed("info", "noise", number=number)
    log.rationed("warning", "other")
    log.flush()
    assert [line.get("number") for line in output.lines() if line["event"] == "noise"] == list(range(10))
    now = 1001.0
    log.flush()
    assert [line["event"] for line in output.lines()].count("other") == 1
    last = output.lines()[-1]
    assert (last["level"], last["event"], last["suppressed"]) == ("info", "noise", 15)
    log.rationed("info", "noise", number=25)
    log.flush()
    assert output.lines()[-1]["number"] == 25
    now = 1002.5
    log.flush()
    assert output.lines()[-1]["number"] == 25, "nothing was held back, so nothing is said of it"


def test_what_is_held_back_is_told_at_the_end(output: Output) -> None:
    log = Log("info", True, output)
    for _ in range(12):
        log.rationed("info", "noise")
        log.rationed("debug", "unwanted")
    log.close()
    assert [line.get("suppressed") for line in output.lines()] == [None] * 10 + [2]


class _Clock:
    """The module `time` with a monotonic clock of our own."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.monotonic = now
        self.time = time.time
        self.sleep = time.sleep


def test_a_bug_is_told_by_place_and_not_by_its_words(log: Log, output: Output) -> None:
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        log.bug(record(), error)
    log.flush()
    (line,) = output.lines()
    assert (line["id"], line["error"]) == ("id-1", "ValueError")
    assert line["trace"][-1].endswith("test_a_bug_is_told_by_place_and_not_by_its_words")
    assert CANARY not in output.getvalue().decode()


# -- what libraries say ---------------------------------------------------------------------------------------------


def test_what_libraries_log_has_its_arguments_and_no_key(log: Log, output: Output) -> None:
    """As OpenTelemetry's exporter: `Failed to export %s batch code: %s, reason: %s`."""
    log.mask = lambda text: text.replace(CANARY, "***")
    records: list[tuple[str, tuple[Any, ...]]] = [
        ("Failed to export %s batch code: %s, reason: %s", ("span", 503, f"key {CANARY}")),
        ("retrying in %.2fs", (1.5,)),
        ("%(what)s is gone", ({"what": "it"},)),
        ("no arguments: 100 %", ()),
        ("too few: %s %s", (CANARY,)),
        ("wrong: %d", (CANARY,)),
        ("first\nsecond %s", (CANARY,)),
        ("long " + "x" * 10_000, ()),
        ("split: " + "x" * 490 + "%s", (CANARY,)),
        (f"in the format itself: {CANARY}", ()),
    ]
    with log.libraries():
        handler = logging.getLogger().handlers[-1]  # pytest's own handlers raise what does not fit
        for text, arguments in [*records, ({"a": CANARY}, ())]:
            handler.handle(logging.LogRecord("foreign.library", logging.WARNING, "", 1, text, arguments, None))
    log.flush()
    texts = [line["text"] for line in output.lines()]
    assert texts[:4] == [
        "Failed to export span batch code: 503, reason: key ***",
        "retrying in 1.50s",
        "it is gone",
        "no arguments: 100 %",
    ]
    assert texts[4:7] == ["too few: %s %s", "wrong: %d", "first"]
    assert max(map(len, texts)) <= 500
    assert texts[-1] == "{'a': '***'}"
    assert CANARY[:6] not in output.getvalue().decode()


def test_before_keys_are_known_what_libraries_put_into_it_is_left_out(
    log: Log, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    with log.libraries():
        logging.getLogger("uvicorn.error").info("hello %s", CANARY)
        logging.getLogger("uvicorn.error").warning("odd: %s", CANARY)
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            logging.getLogger("asyncio").error("Exception in callback\nhandle: %r", CANARY, exc_info=error)
    logging.getLogger("uvicorn.error").debug("not ours any more")
    log.flush()
    warning, error_ = output.lines()
    assert (warning["level"], warning["event"], warning["logger"], warning["text"]) == (
        "warning",
        "library",
        "uvicorn.error",
        "odd: %s",
    )
    assert (error_["level"], error_["logger"], error_["text"]) == ("error", "asyncio", "Exception in callback")
    assert error_["error"] == "KeyError"
    assert error_["trace"]
    assert CANARY not in output.getvalue().decode()
    assert CANARY not in "".join(capsys.readouterr())


# -- a whole gateway ------------------------------------------------------------------------------------------------


def chat(text: str = CANARY, **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "user": CANARY, **members}


def test_nothing_that_was_said_is_ever_logged_or_counted() -> None:
    scripted = "sim:" + json.dumps({"text": f"{CANARY} and more", "fault": ""})
    bodies: list[Any] = [
        chat(),
        chat(stream=True),
        chat(scripted),
        chat(scripted, stream=True),
        chat(model=f"{CANARY} is no name of a model"),
        chat(temperature=CANARY),
        chat() | {CANARY: 1},
        chat("sim:" + json.dumps({"text": CANARY, "fault": "status:400"})),
        chat("sim:" + json.dumps({"text": CANARY, "fault": "bad-json"})),
        chat("sim:" + json.dumps({"text": CANARY, "fault": "reset@2"}), stream=True),
    ]
    config = {"log": {"level": "debug"}, "dialects": {"openai": {"extras": "error"}}, "retry": {"attempts": 1}}
    with Stack(config=config) as stack:
        for body in bodies:
            with contextlib.suppress(httpx.RemoteProtocolError):  # the stream that is cut
                httpx.post(stack.url + "/v1/chat/completions", json=body, headers={"x-secret": CANARY})
        httpx.post(stack.url + "/v1/chat/completions", content=f'{{"{CANARY}'.encode())
        httpx.get(stack.url + f"/{CANARY}?{CANARY}")
        httpx.get(stack.url + f"/v1/models/{CANARY}", headers={"authorization": f"Bearer {CANARY}"})
        httpx.request(CANARY.upper().replace("-", ""), stack.url + "/v1/models")
        records = stack.records()
        assert len(records) == len(bodies) + 3  # an unknown method is not HTTP here: it has none
        page = httpx.get(stack.url + "/metrics").text
        logged = stack.output.getvalue().decode()
        assert CANARY not in logged
        assert CANARY.upper().replace("-", "") not in logged
        assert CANARY not in page
        assert CANARY.upper().replace("-", "") not in page


def test_every_request_has_its_record() -> None:
    with Stack() as stack:
        url = stack.url + "/v1/chat/completions"
        httpx.post(url, json=chat("hi"), headers={"x-request-id": "mine"})
        httpx.post(url, json=chat("hi", stream=True))
        httpx.post(url, json=chat("hi", model="unknown"))
        httpx.get(stack.url + "/v1/models")
        plain, streamed, refused, models = stack.records()
    assert plain["id"] == "mine"
    assert (plain["status"], plain["outcome"], plain["stream"], plain["attempts"]) == (200, "ok", False, 1)
    assert (plain["operation"], plain["model"], plain["key"]) == ("chat", "m", "anonymous")
    assert plain["usage"]["output"] > 0
    assert plain["usage"]["source"] == "engine"
    assert plain["time_to_first_token_ms"] is None
    assert plain["worker"].startswith("http://127.0.0.1:")
    assert streamed["stream"] is True
    assert 0 < streamed["time_to_first_token_ms"] <= streamed["duration_ms"]
    assert (refused["status"], refused["outcome"], refused["code"]) == (404, "refused", "model_not_found")
    assert (refused["model"], refused["worker"], refused["attempts"]) == ("", None, 0)
    assert (refused["asked"], refused["routed"]) == ("unknown", None)
    assert (models["operation"], models["status"]) == ("models", 200)


# -- for people -----------------------------------------------------------------------------------------------------


def test_lines_for_people_say_what_there_is_and_move_no_cursor(output: Output) -> None:
    log = Log("debug", True, output, "console")
    log.request(record(status=200, model="m", duration_ms=1.5, key="\x1b[2Jkey", worker="http://w"))
    log.event("warning", "worker\x9b down", model="a b", count=3, nothing=None)
    log.close()
    first, second = output.getvalue().decode("ascii").splitlines()
    assert first[2::3][:2] == "::"
    assert first.split(maxsplit=1)[1].startswith("info    request  id=id-1 dialect=openai model=m ")
    assert 'key="\\u001b[2Jkey"' in first
    assert "worker=http://w" in first
    assert "time_to_first_token_ms" not in first, "what is null is left out"
    assert second.endswith('warning worker\\u009b down  model="a b" count=3')


@pytest.mark.parametrize(
    ("form", "terminal", "console"),
    [("auto", True, True), ("auto", False, False), ("json", True, False), ("console", False, True)],
)
def test_the_form_is_as_configured_and_else_as_the_output_is(
    form: str, terminal: bool, console: bool, output: Output
) -> None:
    log = Log("info", True, output)
    log._terminal = terminal  # the standard output of a test is not a terminal
    log.configure("info", True, form)
    log.event("info", "hello")
    log.close()
    assert output.getvalue().startswith(b"{") is not console


# -- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_are_logged_where_the_operator_says_so_and_it_warns() -> None:
    with Stack(config={"log": {"dangerously_log_prompts": True}}) as stack:
        httpx.post(stack.url + "/v1/chat/completions", json=chat(), headers={"x-request-id": "mine"})
        httpx.post(stack.url + "/v1/chat/completions", content=b"\xff" * 100_000)
        stack.records()
        (warning,) = stack.events("prompts are logged")
        assert (warning["level"], warning["option"]) == ("warning", "log.dangerously_log_prompts")
        said, garbage = stack.events("prompt")
        assert said["id"] == "mine"
        assert CANARY in said["body"]
        assert (garbage["bytes"], len(garbage["body"])) == (100_000, 65_536)
        stack.run(stack.gateway.reload(stack.config({"log": {"dangerously_log_prompts": False}})))
        httpx.post(stack.url + "/v1/chat/completions", json=chat())
        stack.records()
        assert len(stack.events("prompt")) == 2

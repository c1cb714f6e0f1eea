"""Runs one driver in the environment of its library: `python drive.py DRIVER URL [GIVEN]`; the outcomes are one line of
JSON.

A driver is a module in drivers/ with

    connect(url, model)             the library, configured. Its last expression is the one in docs/libraries.md
    whole(client, model, prompt)    the text of a whole reply
    streamed(client, model, prompt) the pieces of a streamed one; absent where the library has no streams
    tools(client, model, prompt, look)  the last text of a conversation in which the model calls `look`; absent where
                                    the library has no tools, or they are not tried
    LOOK                            the name by which the library offers that tool; absent: look

Outcomes: {"whole": text, "streamed": pieces or null, "unknown": error, "cut": error or null, "strayed": addresses}.
An error is {"raised": names of its class and of those it is derived from, nearest first, or [] if there was none,
"said": its text}. `unknown` is the one for an unknown model, `cut` the one for a stream that the worker breaks off.
Any address beyond this machine is refused to the library, and told as `strayed`.

GIVEN is JSON: {"line": the configuration to be used instead of `connect`, as docs/clients.md has it, "keys": {"good",
"expired", "busy"}}. Then there are more outcomes: "tools": [arguments of the calls, last text] or null, "before": the
error of a stream whose worker fails before it, "expired": the error for that key, "limited": the error for a key that
is over its limit at first and not when it is asked again. With {"line", "prompt"} there is only "streamed", to that
prompt.
"""

from __future__ import annotations

import importlib
import ipaddress
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TEXT = "Grüezi mitenand, 你好"
ADDRESS, MODEL = "http://127.0.0.1:8080", "smollm2"
AT = ["a", "b"]
# Pieces of a real answer that are waited for: a small model may go on for long.
MOST = 12
strayed: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. Raises ConnectionRefusedError where the library leaves this machine."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host in (None, "localhost"):
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass
    strayed.append(str(host))
    raise ConnectionRefusedError(f"{host} is beyond this machine")


def script(**said: Any) -> str:
    """A prompt by which the simulated worker answers exactly this."""
    return "sim:" + json.dumps(said)


def failed(call: Callable[[], Any]) -> dict[str, Any]:
    """What `call` raised."""
    try:
        call()
    except Exception as error:
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        return {"raised": names, "said": str(error)}
    return {"raised": [], "said": ""}


def applied(line: str, url: str, model: str, key: str, names: Mapping[str, Any]) -> Any:
    """What a line of configuration makes, with this address, model and key instead of those of `make run`."""
    # Ollama's clients take their key from the environment.
    os.environ["OLLAMA_API_KEY"] = key
    told = line.replace(ADDRESS, url).replace(f'{MODEL}"', f'{model}"')
    return eval(re.sub(r"\bnone\b", key, told), dict(names))


def tried_further(driver: Any, given: Mapping[str, Any], url: str) -> dict[str, Any]:
    """The outcomes that only some libraries are asked for."""
    keys, line, names = given["keys"], given["line"], vars(driver)
    client = applied(line, url, "m", keys["good"], names)
    found: dict[str, Any] = {"tools": None}
    if hasattr(driver, "tools"):
        seen: list[str] = []

        def look(at: str) -> str:
            """Looks at something.

            Args:
                at: where
            """
            seen.append(at)
            return f"seen {at}"

        calls = [{"name": getattr(driver, "LOOK", "look"), "arguments": {"at": at}} for at in AT]
        rounds = [{"text": "Let me look.", "tool_calls": calls}, {"text": TEXT}]
        last = driver.tools(client, "m", f"Go on. {script(rounds=rounds)}", look)
        found["tools"] = [sorted(seen), last]  # CrewAI calls both at once, in threads
    ask = getattr(driver, "streamed", driver.whole)
    found["before"] = failed(lambda: list(ask(client, "m", script(fault="status:500"))))
    expired = applied(line, url, "m", keys["expired"], names)
    found["expired"] = failed(lambda: driver.whole(expired, "m", script(text=TEXT)))
    busy = applied(line, url, "m", keys["busy"], names)
    found["limited"] = failed(lambda: driver.whole(busy, "m", script(text=TEXT)))
    return found


def main(name: str, url: str, more: str = "{}") -> None:
    """The last line of stdout is the outcomes; what a library prints goes to stderr."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.addaudithook(watch)
    sys.path.insert(0, str(Path(__file__).with_name("drivers")))
    driver: Any = importlib.import_module(name)
    given = json.loads(more)

    def connect(model: str) -> Any:
        if not given:
            return driver.connect(url, model)
        return applied(given["line"], url, model, given.get("keys", {}).get("good", "none"), vars(driver))

    if "prompt" in given:
        pieces = list(itertools.islice(driver.streamed(connect(MODEL), MODEL, given["prompt"]), MOST))
        print(json.dumps({"streamed": pieces, "strayed": strayed}), file=told, flush=True)
        return
    client = connect("m")
    streamed = getattr(driver, "streamed", None)
    outcome: dict[str, Any] = {"whole": driver.whole(client, "m", script(text=TEXT)), "streamed": None, "cut": None}
    if streamed is not None:
        outcome["streamed"] = list(streamed(client, "m", script(text=TEXT)))
        cut = script(text="one two three four five six", fault="reset@3")
        outcome["cut"] = failed(lambda: list(streamed(client, "m", cut)))
    outcome["unknown"] = failed(lambda: driver.whole(connect("nobody"), "nobody", script(text=TEXT)))
    if given:
        outcome |= tried_further(driver, given, url)
    print(json.dumps({**outcome, "strayed": strayed}), file=told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

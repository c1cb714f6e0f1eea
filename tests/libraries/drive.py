"""Runs one driver in the environment of its library: `python drive.py DRIVER URL`; the outcomes are one line of JSON.

A driver is a module in drivers/ with

    connect(url, model)             the library, configured. Its last expression is the configuration in docs/clients.md
    whole(client, model, prompt)    the text of a whole reply
    streamed(client, model, prompt) the pieces of a streamed one; absent where the library has no streams

Outcomes: {"whole": text, "streamed": pieces or null, "unknown": error, "cut": error or null, "strayed": addresses}.
An error is {"raised": names of its class and of those it is derived from, nearest first, or [] if there was none,
"said": its text}. `unknown` is the one for an unknown model, `cut` the one for a stream that the worker breaks off.
Any address beyond this machine is refused to the library, and told as `strayed`.
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = "Grüezi mitenand, 你好"
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


def main(name: str, url: str) -> None:
    sys.addaudithook(watch)
    sys.path.insert(0, str(Path(__file__).with_name("drivers")))
    driver: Any = importlib.import_module(name)
    client = driver.connect(url, "m")
    streamed = getattr(driver, "streamed", None)
    outcome: dict[str, Any] = {"whole": driver.whole(client, "m", script(text=TEXT)), "streamed": None, "cut": None}
    if streamed is not None:
        outcome["streamed"] = list(streamed(client, "m", script(text=TEXT)))
        cut = script(text="one two three four five six", fault="reset@3")
        outcome["cut"] = failed(lambda: list(streamed(client, "m", cut)))
    outcome["unknown"] = failed(lambda: driver.whole(driver.connect(url, "nobody"), "nobody", script(text=TEXT)))
    print(json.dumps({**outcome, "strayed": strayed}))


if __name__ == "__main__":
    main(*sys.argv[1:])

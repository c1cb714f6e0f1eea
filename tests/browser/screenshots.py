"""Takes the pictures of the console for the documents: `make screenshots`.

A gateway with simulated workers gets a minute of traffic of two teams; a real Chromium looks at its console.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import threading
import time
from pathlib import Path

import httpx

from tests.app.asking import key
from tests.browser.chromium import Browser
from tests.harness import Stack

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
SECONDS = 60
CONSOLE_KEY = "console-key-console-key"


def take() -> None:
    """Writes `docs/images/console.png` and `playground.png`."""
    search, support = key("search", team="search"), key("support", team="support")
    workers = tuple(
        {"itl_ms": 12 + 6 * number, "output_tokens": 60, "prefill_us_per_token": 900} for number in range(3)
    )
    config = {
        "metrics": {"listen": "127.0.0.1:9090"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
        "keys": {**search[1], **support[1]},
        "limits": [{"name": "requests", "kind": "requests", "limit": 100000, "per_s": "1m", "scope": ["team"]}],
    }
    IMAGES.mkdir(exist_ok=True)
    with (
        Stack(workers=workers, config=config, environ={"CONSOLE_KEY": CONSOLE_KEY}) as stack,
        tempfile.TemporaryDirectory() as folder,
        Browser(Path(folder), width=1200, height=1000) as browser,
    ):
        browser.open(stack.admin_url + "/console")
        browser.until("!document.querySelector('#key-form').hidden")
        browser.type("#key", CONSOLE_KEY)
        browser.click("#key-form button")
        stack.sims[0].fault("reset@5", 3)  # three streams that another worker goes on with
        _traffic(stack.url, [search[0], search[0], support[0]])
        (IMAGES / "console.png").write_bytes(browser.picture("#live"))
        browser.type("#client-key", search[0])
        browser.choose("#dialect", "ollama")
        browser.click("#send")
        browser.until("document.querySelector('#outcome').textContent.includes('whole')")
        (IMAGES / "playground.png").write_bytes(browser.picture("#playground"))
        assert [fault for fault in browser.faults if "401" not in fault] == []  # the first look has no key


def _traffic(url: str, secrets: list[str]) -> None:
    """As many clients as `secrets`, each one request after another, for `SECONDS`; some of them pause now and then."""
    end = time.monotonic() + SECONDS

    def ask(secret: str, chance: random.Random) -> None:
        with httpx.Client(headers={"authorization": f"Bearer {secret}"}, timeout=30) as client:
            for number in itertools.count():
                if time.monotonic() > end:
                    return
                words = "word " * chance.randint(5, 200)
                body = {"model": "m", "messages": [{"role": "user", "content": words}], "stream": True}
                body |= {"max_tokens": chance.randint(10, 60)}
                client.post(url + "/v1/chat/completions", json=body).raise_for_status()
                if number % 9 == 8:
                    time.sleep(chance.random() * 2)

    threads = [
        threading.Thread(target=ask, args=(secret, random.Random(number))) for number, secret in enumerate(secrets * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    take()

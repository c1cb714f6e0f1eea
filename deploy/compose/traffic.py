"""The clients of deploy/compose.yaml: `traffic.py URL KEY-FILE` sends streamed chats to a gateway without an end."""

import json
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

MODELS = ("small", "small", "large")
"""The model of each client."""
PAUSE_S = 2.0


def chat(url: str, secret: str, model: str, number: int) -> None:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": f"Question {number} to {model}?"}]}
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        while reply.read(65536):
            pass


def call(url: str, secret: str, model: str) -> None:
    number = 0
    while True:
        number += 1
        try:
            chat(url, secret, model, number)
        except OSError as error:  # the gateway starts, or refuses
            print(f"{model}: {error}", flush=True)
        time.sleep(PAUSE_S)


def main(url: str, file: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    secret = Path(file).read_text(encoding="ascii")
    for model in MODELS:
        threading.Thread(target=call, args=(url, secret, model), daemon=True).start()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])

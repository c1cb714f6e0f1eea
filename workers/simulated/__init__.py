"""A simulated GPU worker: the part of vLLM 0.33's OpenAI server that a trial needs, with a timing model and no model.

`dragoman worker simulated` runs it. Its modules: `requests` (what is asked), `answers` (what is replied), `engine`
(slots, cache, clock), `metrics`, `server` (the ASGI application), `options` and `cli`. `Simulated.routes` takes other
paths, and each part a subclass: tests/support/simulated extends options, engine and metrics, and answers on raw
sockets.
"""

from workers.simulated.cli import main

__all__ = ["main"]

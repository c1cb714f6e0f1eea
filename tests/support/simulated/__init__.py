"""The tests' worker: vLLM 0.33's OpenAI server to the field, with scripts, faults and a ledger of its requests.

It is built on `dragoman worker simulated` (workers/simulated): options, engine, metrics, tokenizer and invented words
are those. It answers on raw sockets, so that faults can reach them and an answer costs a few microseconds. Tests use
`async with Simulated(...) as sim`; `python -m tests.support.simulated` runs it as a process. Its own modules:
`requests` (what vLLM takes and refuses), `plan` (what a reply says), `render` (vLLM's bytes), `jobs` (answering),
`faults`, `ledger`, `http` (connections), `server` (routes and control), `kv` and `kv_events`.
"""

from tests.support.simulated.cli import main
from tests.support.simulated.ledger import Entry
from tests.support.simulated.options import Options
from tests.support.simulated.server import Simulated

__all__ = ["Entry", "Options", "Simulated", "main"]

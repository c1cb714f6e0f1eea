"""A simulated GPU worker: vLLM 0.33's OpenAI server to the field, with a timing model, scripts and faults.

`dragoman worker simulated` runs it; tests use `async with Simulated(...) as sim`. The modules: `requests` (what vLLM
takes and refuses), `plan` (what a reply says), `render` (vLLM's bytes), `engine` (slots, cache, clock), `jobs`
(answering), `faults`, `ledger`, `metrics`, `http` (connections), `server` (routes and control).
"""

from workers.simulated.cli import main
from workers.simulated.ledger import Entry
from workers.simulated.options import Options
from workers.simulated.server import Simulated

__all__ = ["Entry", "Options", "Simulated", "main"]

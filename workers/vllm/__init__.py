"""Real vLLM as a worker: launches its OpenAI server, joins the fleet, leaves it without cutting a stream.

`dragoman worker vllm --model ... [any vLLM flag]` runs it. `engine` is the server as a child process, `facts` what it
says of itself, `processors` what it executes beyond stock vLLM, `cli` the life of the worker.
"""

from workers.vllm.cli import main

__all__ = ["main"]

"""Real vLLM as a worker: launches its OpenAI server, joins the fleet, leaves it without cutting a stream.

`dragoman worker vllm --model ... [any vLLM flag]` runs it. `engine` is the server as a child process, `facts` what it
says of itself, `processors` what it executes beyond stock vLLM, `cli` the life of the worker.
"""


def main(argv: list[str]) -> int:
    """Run the worker; returns the process's exit status."""
    # Imported late: vLLM's interpreter imports this package for `processors`, and may have none of our dependencies.
    from workers.vllm.cli import main as run

    return run(argv)

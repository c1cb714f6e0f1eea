"""Real vLLM as a worker: launches its OpenAI server, joins the fleet, and leaves it without cutting a stream.

`dragoman worker vllm --model ... [any vLLM flag]` runs it. `engine` is the server as a child process, `facts` its
capabilities, `processors` what it can do beyond stock vLLM, `cli` the worker from start to end.
"""


def main(argv: list[str]) -> int:
    """Run the worker; returns the process's exit status."""
    # Imported late: vLLM's interpreter imports this package for `processors` and may lack our dependencies.
    from workers.vllm.cli import main as run

    return run(argv)

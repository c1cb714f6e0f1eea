"""`python -m workers.vllm`: the same as `dragoman worker vllm`."""

import sys

from workers.vllm.cli import main

sys.exit(main(sys.argv[1:]))

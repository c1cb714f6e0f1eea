"""`python -m tests.simulated`: the tests' worker as a process."""

import sys

from tests.simulated.cli import main

sys.exit(main(sys.argv[1:]))

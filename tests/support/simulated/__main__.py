"""`python -m tests.support.simulated`: the tests' worker as a process."""

import sys

from tests.support.simulated.cli import main

sys.exit(main(sys.argv[1:]))

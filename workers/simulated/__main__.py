"""`python -m workers.simulated`: the same as `dragoman worker simulated`."""

import sys

from workers.simulated.cli import main

sys.exit(main(sys.argv[1:]))

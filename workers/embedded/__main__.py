"""`python -m workers.embedded`: the same as `dragoman worker embedded`."""

import sys

from workers.embedded.cli import main

sys.exit(main(sys.argv[1:]))

import sys

from workers.embedded.cli import main

sys.exit(main(sys.argv[1:]))

"""`python -m benchmarks.security`."""

import sys

from benchmarks.security.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

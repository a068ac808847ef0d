"""`python -m benchmarks.growth`."""

import sys

from benchmarks.growth.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

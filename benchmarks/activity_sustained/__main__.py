"""`python -m benchmarks.activity_sustained`."""

import sys

from benchmarks.activity_sustained.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

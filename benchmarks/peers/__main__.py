"""`python -m benchmarks.peers`."""

import sys

from benchmarks.peers.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m benchmarks.replication`."""

import sys

from benchmarks.replication.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

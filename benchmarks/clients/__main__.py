import sys

from benchmarks.clients.command import main

main(sys.argv[1:])

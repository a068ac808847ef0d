import sys

from benchmarks.spark.command import main

main(sys.argv[1:])

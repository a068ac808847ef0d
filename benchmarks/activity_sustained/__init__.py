"""Sustained: all six pipelines on one machine for fifty minutes; do lag and memory stay flat?

    python -m benchmarks.activity_sustained [--minutes 50] [--rate 2000] [--folder FOLDER] [--without-report]

It runs `penstock activity run` at a flat rate and watches it from outside: status files, /proc, Java's GC log. The
first 70 %, at most 35 minutes, are warm-up. A rate is sustained if the generator kept to it, no lag, memory or heap
has grown since then, nothing was restarted, and the run's report finds every event in the tables once.

    sampler.py     a sample every five seconds: lag, batches, memory and CPU of each process, heap after collections
    trends.py      what grew and what did not, pure
    command.py     the run, its judgement and its chart
"""

from benchmarks.activity_sustained.command import main, pictures

__all__ = ["main", "pictures"]

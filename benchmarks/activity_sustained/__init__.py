"""Sustained: all six pipelines on one machine for fifty minutes; whether lag and memory stay as they are.

    python -m benchmarks.activity_sustained [--minutes 50] [--rate 2000] [--folder FOLDER] [--without-report]

What runs is `penstock activity run`, as its users run it, at a flat rate; this looks at it from outside, by the
status files of the pipelines, by /proc, and by what Java writes of its collections. The first 70 %, at most 35
minutes, are warm-up. A rate is sustained if the generator kept to it, no lag, no memory and no heap has grown since
then, nothing was started again, and the run's own report finds every event in the tables, once.

    watching.py    a sample every five seconds: lag, batches, memory and processor time of each process
    heap.py        what full collections leave in the heap of Spark's Java
    figures.py     what grew and what did not, pure
    chart.py       the whole run as a picture
"""

from benchmarks.activity_sustained.chart import pictures
from benchmarks.activity_sustained.command import main

__all__ = ["main", "pictures"]

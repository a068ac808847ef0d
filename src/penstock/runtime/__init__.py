"""The only way to the outside: files, sockets, clock, randomness, work in the background.

Rule: everything above takes these as arguments, so that the same code runs on a real machine, in a unit test
with a clock that stands still, and in the simulator on a disk that loses power.
"""

"""The only access to the environment: files, sockets, clock, randomness, threads.

Code above takes these as arguments, so it also runs in unit tests with a manual clock and in the simulator on a disk
that loses power.
"""

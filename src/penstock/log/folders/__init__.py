"""Data folders: a disk's partitions and what is remembered of them, and the set of disks of a broker."""

"""Log directories (`log.dirs`): the partitions on each disk, their checkpoints, and the log manager of a broker."""

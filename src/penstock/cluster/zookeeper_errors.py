"""What can be wrong with a ZooKeeper: with its address, on the way to it, with what it is started from."""

from __future__ import annotations

from penstock.cluster.errors import ClusterError, TreeError


class InvalidConnect(ClusterError):
    """A zookeeper.connect that is no list of hosts."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"zookeeper.connect is {text[:200]!r}: {reason}; write host:port, several parted by commas, and a path "
            "behind the last if the cluster has one, as zk1:2181,zk2:2181/kafka"
        )
        self.text = text


class ZooKeeperUnreachable(TreeError):
    """No session: why, for each server, and what to try."""

    def __init__(self, address: str, reason: str, advice: str) -> None:
        super().__init__(f"no ZooKeeper session at {address}: {reason}; {advice}")
        self.reason = reason
        self.advice = advice


class ZooKeeperRefused(TreeError):
    """An operation that ZooKeeper did not make, for a reason of its own."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ZooKeeper refused an operation on {path}: {reason}")
        self.path = path
        self.reason = reason


class ZooKeeperNotStarted(ClusterError):
    """A ZooKeeper server that cannot start: what is wrong, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem
        self.advice = advice

"""Settings of a broker's identity, its sockets and its connections."""

from __future__ import annotations

from typing import Final

from penstock.broker.settings.definitions import INT_MAX, KIB, MIB, MINUTE_MS, ConfigType, Definition, Importance

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_HIGH, _LOW = Importance.HIGH, Importance.LOW

# Kafka's default is no limit. A broker that is a Python process has no heap of a fixed size that would be one.
QUEUED_BYTES: Final = 512 * MIB
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

IDENTITY: Final = (
    Definition(
        "broker.id", _INT, -1, "The number of this broker, another one for each broker of a cluster; -1 leaves the "
        "choice to the broker, which keeps it in its data folders.", _HIGH, least=-1,
    ),
    Definition("node.id", _INT, -1, "Another name of broker.id.", _HIGH, least=-1),
    Definition(
        "broker.id.generation.enable", _BOOLEAN, True, "Whether a broker without a number may be given one by "
        "ZooKeeper, above reserved.broker.max.id.",
    ),
    Definition("reserved.broker.max.id", _INT, 1000, "The largest number for broker.id, where numbers are also "
               "generated.", least=0),
    Definition(
        "broker.rack", _STRING, None, "The rack or zone that this broker stands in; replicas of a partition are spread "
        "over racks.",
    ),
    Definition(
        "zookeeper.connect", _STRING, None, "The ZooKeeper servers of the cluster, host:port parted by commas, with an "
        "optional /path at the end. Without them a broker stands alone and keeps the metadata itself.", _HIGH,
    ),
    Definition(
        "zookeeper.session.timeout.ms", _INT, 6_000, "After how long without a sign of life ZooKeeper takes this "
        "broker for dead.", _HIGH, least=1,
    ),
    Definition(
        "zookeeper.connection.timeout.ms", _INT, None, "How long to wait for the first connection to ZooKeeper; if not "
        "set, as long as zookeeper.session.timeout.ms.", _HIGH, least=1,
    ),
    Definition("zookeeper.max.in.flight.requests", _INT, 10, "Requests to ZooKeeper that may wait for an answer.",
               _HIGH, least=1, has_effect=False),
    Definition("zookeeper.set.acl", _BOOLEAN, False, "Whether nodes in ZooKeeper are protected by access lists.", _HIGH,
               has_effect=False),
    Definition("zookeeper.ssl.client.enable", _BOOLEAN, False, "Whether connections to ZooKeeper are encrypted.",
               has_effect=False),
    Definition("zookeeper.sync.time.ms", _INT, 2000, "How far a ZooKeeper follower may be behind.", _LOW,
               has_effect=False),
    Definition("process.roles", ConfigType.LIST, (), "The roles of a process in a cluster without ZooKeeper.", _HIGH,
               one_of=("broker", "controller"), has_effect=False),
    Definition(
        "controller.listener.names", _STRING, None, "Listeners for a metadata quorum. There is none here, so listeners "
        "of these names are left out of listeners and advertised.listeners.", _HIGH,
    ),
    Definition("controller.quorum.voters", ConfigType.LIST, (), "The members of a metadata quorum.", _HIGH,
               has_effect=False),
)  # fmt: skip

SOCKETS: Final = (
    Definition(
        "listeners", _STRING, "PLAINTEXT://:9092", "Where the broker accepts connections: name://host:port, parted by "
        "commas. Without a host, or with 0.0.0.0, on all addresses of the machine; port 0 takes a free one.", _HIGH,
    ),
    Definition(
        "advertised.listeners", _STRING, None, "What clients are told to connect to, in the form of listeners: "
        "addresses that they can reach. If not set, those of listeners, with the machine's name for 0.0.0.0.", _HIGH,
    ),
    Definition(
        "listener.security.protocol.map", _STRING, ",".join(f"{name}:{name}" for name in _PROTOCOLS),
        "Which security protocol a listener of each name speaks.", _LOW,
    ),
    Definition(
        "inter.broker.listener.name", _STRING, None, "The listener by which brokers reach each other; if not set, the "
        "one that is named or speaks PLAINTEXT.",
    ),
    Definition("security.inter.broker.protocol", _STRING, "PLAINTEXT", "The protocol among brokers.",
               one_of=_PROTOCOLS, has_effect=False),
    Definition(
        "socket.send.buffer.bytes", _INT, 100 * KIB, "The send buffer (SO_SNDBUF) of connections; -1 leaves it to the "
        "operating system.", _HIGH, least=1, also=(-1,),
    ),
    Definition(
        "socket.receive.buffer.bytes", _INT, 100 * KIB, "The receive buffer (SO_RCVBUF) of connections; -1 leaves it "
        "to the operating system.", _HIGH, least=1, also=(-1,),
    ),
    Definition("socket.request.max.bytes", _INT, 100 * MIB, "The largest request that is read; whoever announces a "
               "larger one is disconnected.", _HIGH, least=1),
    Definition(
        "socket.busy.poll.us",
        _INT,
        100,
        "Microseconds to stay awake for the next request of a client that asks one by one; 0 is never. Not Kafka's.",
        least=0,
        most=10_000,
    ),
    Definition("socket.listen.backlog.size", _INT, 50, "Connections that may wait to be accepted.", least=1),
    Definition("connections.max.idle.ms", _LONG, 10 * MINUTE_MS, "A connection on which nothing happens for this long "
               "is closed; negative never."),
    Definition("max.connections", _INT, INT_MAX, "The most connections that the broker has open.", least=0,
               dynamic=True),
    Definition("max.connections.per.ip", _INT, INT_MAX, "The most connections from one address; 0 only together with "
               "max.connections.per.ip.overrides.", least=0, dynamic=True),
    Definition("max.connections.per.ip.overrides", _STRING, "", "Another maximum for some addresses: address:number, "
               "parted by commas.", dynamic=True),
    Definition("max.connection.creation.rate", _INT, INT_MAX, "The most connections that are accepted in a second.",
               least=0, dynamic=True),
    Definition("queued.max.requests", _INT, 500, "Requests that may be waiting or in work before the broker stops to "
               "read more.", _HIGH, least=1),
    Definition("queued.max.request.bytes", _LONG, QUEUED_BYTES, "Bytes of requests that are being received or in work, "
               "over all connections; beyond, connections that bring more than 64 KiB at once wait. Zero or less is no "
               "limit."),
    Definition("request.timeout.ms", _INT, 30_000, "How long this broker waits for an answer of another one.", _HIGH,
               least=1),
    Definition("socket.connection.setup.timeout.ms", _LONG, 10_000, "How long a connection to another broker may take "
               "to come about.", least=1),
    Definition("socket.connection.setup.timeout.max.ms", _LONG, 30_000, "The same after several failures.", least=1,
               has_effect=False),
    Definition("penstock.http.hosts", ConfigType.LIST, (), "Names by which this broker is called over HTTP (metrics, "
               "health), besides addresses, localhost, the machine's name and those of advertised.listeners; * is any. "
               "Requests for other names are rejected, so that pages from elsewhere cannot read them. Not Kafka's."),
    Definition("connection.failed.authentication.delay.ms", _INT, 100, "The pause before a failed login is answered.",
               _LOW, least=0, has_effect=False),
    Definition("connections.max.reauth.ms", _LONG, 0, "How long a login counts.", has_effect=False),
)  # fmt: skip

FETCHES: Final = (
    Definition("fetch.max.bytes", _INT, 55 * MIB, "The most bytes in one answer to a fetch, whatever the client asks "
               "for; the first batch always comes whole.", least=1024),
    Definition("max.incremental.fetch.session.cache.slots", _INT, 1000, "Fetch sessions that the broker remembers.",
               least=0),
    # Not Kafka's, whose slots bound the sessions but not their size. A partition of a session takes some 300 bytes.
    Definition("max.incremental.fetch.session.cache.partitions", _INT, 250_000, "Partitions of all fetch sessions "
               "together; beyond, clients get no session and name all partitions with each fetch.", least=0),
    Definition("max.request.partition.size.limit", _INT, 2000, "The most partitions in one answer to a description of "
               "topics.", least=1),
)  # fmt: skip

THREADS: Final = (
    Definition("num.network.threads", _INT, 3, "Threads for sockets; here one event loop serves them all.", _HIGH,
               least=1, dynamic=True, has_effect=False),
    Definition("num.io.threads", _INT, 8, "Threads for requests.", _HIGH, least=1, dynamic=True, has_effect=False),
    Definition("background.threads", _INT, 10, "Threads for work in the background.", _HIGH, least=1, dynamic=True,
               has_effect=False),
    Definition("num.recovery.threads.per.data.dir", _INT, 2, "Threads that open a data folder's logs at the start and "
               "flush them at the end.", _HIGH, least=1, dynamic=True),
    Definition("num.replica.alter.log.dirs.threads", _INT, None, "Threads that move partitions from disk to disk.",
               _HIGH, has_effect=False),
)  # fmt: skip

SECURITY: Final = (
    Definition("authorizer.class.name", _STRING, "", "The class that decides who may do what.", _LOW,
               has_effect=False),
    Definition("principal.builder.class", ConfigType.CLASS, None, "The class that names who is connected.",
               has_effect=False),
    Definition("delegation.token.secret.key", ConfigType.PASSWORD, None, "The key of delegation tokens.",
               has_effect=False),
    Definition("password.encoder.secret", ConfigType.PASSWORD, None, "The key of stored passwords.", has_effect=False),
    Definition("client.quota.callback.class", ConfigType.CLASS, None, "The class that decides on quotas.", _LOW,
               has_effect=False),
    Definition("create.topic.policy.class.name", ConfigType.CLASS, None, "The class that judges new topics.", _LOW,
               has_effect=False),
    Definition("alter.config.policy.class.name", ConfigType.CLASS, None, "The class that judges changes of settings.",
               _LOW, has_effect=False),
)  # fmt: skip

DEFINITIONS: Final = (*IDENTITY, *SOCKETS, *FETCHES, *THREADS, *SECURITY)

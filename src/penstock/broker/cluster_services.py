"""What a broker in a cluster has beyond one that stands alone.

`ClusterServices` holds the broker's membership, its connections to the other brokers (`BrokerLinks`), the failure
detectors, the replica fetchers, the ISR updates and the replication throttles.

Data folders are opened and ports are open before the broker registers: no client waits for a leader that is still
reading its logs, and the controller can reach it. Until the first image arrives, only ApiVersions and PushImage are
served. Shutdown runs in the opposite order: leadership moves to other brokers first. A link has one connection to one
broker for one purpose, because a broker answers in order and the controller must not wait behind a long poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.background_tasks import BackgroundTasks
from penstock.broker.dynamic_config import SettingsRules, cluster_wide_from_file, overridden
from penstock.broker.log_startup import cluster_id_to_keep
from penstock.broker.settings import BrokerSettings
from penstock.broker.settings.catalogue import TopicSettings
from penstock.client.addresses import Address
from penstock.client.connection import Connection
from penstock.client.connection_pool import ConnectionOptions, UnusableAddress, open_connection
from penstock.client.errors import Cause, ConfigError, PenstockError
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.errors import ClusterError
from penstock.cluster.image import ClusterImage
from penstock.cluster.membership.broker_lifecycle import ControllerDependencies, Membership, TreeOpener
from penstock.cluster.membership.failure_detection import ConnectionFailureDetector, ProbeFailureDetector
from penstock.cluster.membership.shutdown import (
    clear_clean_shutdown,
    controlled_shutdown,
    read_previous_epoch,
    write_broker_epoch,
)
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint, ReplicaSet, TopicReplicas
from penstock.cluster.tree.tree import Tree, ensure_path
from penstock.config_def import InvalidSettings, Problem
from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogError
from penstock.log.log_dirs.identity import MetadataFileError, read_meta
from penstock.replication.follower import UNLIMITED, ReplicaFetcherManager, Throttle
from penstock.replication.replica_manager import AlterPartitionManager
from penstock.runtime.network import RateLimitedLogger
from penstock.security.broker_proof import NONCE_BYTES, ConnectingProof, ProofError
from penstock.security.credentials import CredentialsError
from penstock.wire.protocol import ApiKey, error_code
from penstock.wire.schemas.authenticate_broker import AuthenticateBrokerRequest, AuthenticateBrokerResponse
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.request import Services
    from penstock.cluster.tree.zookeeper.security import ZooKeeperSecurity
    from penstock.runtime.files import Files


logger = logging.getLogger(__name__)

_ISR_TICK_MS: Final = 100
_CONNECT_TIMEOUT_MS: Final = 3_000
_WITHDRAW_MS: Final = 500
_NO_RATE: Final = 2**63 - 1

EndpointOf = Callable[[int], Endpoint | None]
"""By broker id; None if the broker is not registered."""


# --- links to other brokers


class BrokerLinks:
    """Opens links; `close` closes all of them. See `penstock.cluster.broker_links.Links`."""

    def __init__(
        self,
        endpoint_of: EndpointOf,
        options: ConnectionOptions,
        begin_proof: Callable[[int], ConnectingProof],
        complain: RateLimitedLogger,
    ) -> None:
        """`begin_proof` is called with the id of a broker to which a connection was opened."""
        self._endpoint_of = endpoint_of
        self._options = options
        self._begin_proof = begin_proof
        self._complain = complain
        self._links: set[BrokerLink] = set()

    def to(self, broker_id: int) -> BrokerLink:
        link = BrokerLink(self, broker_id, self._endpoint_of)
        self._links.add(link)
        return link

    async def connect(self, broker_id: int, endpoint: Endpoint) -> Connection:
        """A connection on which both sides have proved themselves. LinkLost, PenstockError."""
        connection = await open_connection(Address(endpoint.host, endpoint.port), self._options)
        try:
            await self._prove(broker_id, connection)
        except ProofError as error:
            text = f"broker not authenticated: broker={broker_id} endpoint={endpoint} error={error}"
            self._complain("broker link", text)
            raise LinkLost(f"broker {broker_id}: {error}") from error
        except BaseException:
            connection.abort("the broker was not authenticated")
            raise
        return connection

    async def _prove(self, broker_id: int, connection: Connection) -> None:
        async def ask(message: AuthenticateBrokerRequest) -> AuthenticateBrokerResponse:
            response: AuthenticateBrokerResponse = await connection.request(
                ApiKey.AUTHENTICATE_BROKER, message, version=0, timeout_ms=self._options.connect_timeout_ms
            )
            if response.error_code:
                raise ProofError(f"it answers {error_code(response.error_code).name}: is it of another cluster?")
            return response

        proof = self._begin_proof(broker_id)
        try:
            theirs = await ask(AuthenticateBrokerRequest(broker_id=proof.broker_id, nonce=proof.nonce))
            ours = proof.answer(theirs.broker_id, bytes(theirs.nonce), bytes(theirs.proof))
            await ask(AuthenticateBrokerRequest(broker_id=proof.broker_id, proof=ours))
        except ProofError:
            connection.abort("the broker was not authenticated")
            raise

    def forget(self, link: BrokerLink) -> None:
        self._links.discard(link)

    def close(self) -> None:
        for link in tuple(self._links):
            link.close()


class BrokerLink:
    """See `penstock.cluster.broker_links.Link`."""

    def __init__(self, links: BrokerLinks, broker_id: int, endpoint_of: EndpointOf) -> None:
        self._links = links
        self._broker_id = broker_id
        self._endpoint_of = endpoint_of
        self._connection: Connection | None = None
        self._endpoint: Endpoint | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def ask(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        try:
            connection = await self._open()
            response: Message = await connection.request(api_key, message, version=version, timeout_ms=timeout_ms)
        except PenstockError as error:
            raise LinkLost(f"broker {self._broker_id}: {error}") from error
        return response

    def send(self, api_key: int, version: int, message: Message, timeout_ms: float) -> asyncio.Future[Message] | None:
        connection = self._connection
        if connection is None or connection.closed or self._endpoint_of(self._broker_id) != self._endpoint:
            return None
        return connection.send(api_key, message, version=version, timeout_ms=timeout_ms)

    async def _open(self) -> Connection:
        async with self._opening:
            self._require_open()
            endpoint = self._endpoint_of(self._broker_id)
            if endpoint is None:
                raise LinkLost(f"broker {self._broker_id} is not registered")
            connection = self._connection
            if connection is not None and not connection.closed and endpoint == self._endpoint:
                return connection
            if connection is not None:
                connection.abort("the broker is registered with another address")
            self._connection, self._endpoint = await self._links.connect(self._broker_id, endpoint), endpoint
            self._require_open()
            return self._connection

    def _require_open(self) -> None:
        if self._closed:
            if self._connection is not None:
                self._connection.abort("the link is closed")
            raise LinkLost(f"broker {self._broker_id}: the link is closed")

    def close(self) -> None:
        """Waiting requests fail with LinkLost. Closing twice is harmless."""
        self._closed = True
        self._links.forget(self)
        if self._connection is not None:
            # Not `close`: that would wait for the other side's TLS alert, and the loop may end before.
            self._connection.abort("the link is closed")


def inter_broker_options(settings: BrokerSettings, client_id: str) -> ConnectionOptions:
    """How this broker connects to others: as the listener between brokers demands. InvalidSettings."""
    options = ConnectionOptions(client_id, _CONNECT_TIMEOUT_MS, settings.replica_socket_timeout_ms)
    security = settings.security(settings.inter_broker_listener)
    if not (security.uses_tls or security.uses_sasl):
        return options
    # Imported here because it takes time, and PLAINTEXT needs none of it.
    from penstock.client.security import context_from, login_from

    try:
        if security.uses_tls:
            options = options._replace(ssl=context_from(security.tls()))
        if security.uses_sasl:
            mechanism = security.between_brokers
            login = login_from(
                mechanism,
                security.value("sasl.jaas.config", mechanism),
                token_url=security.value("sasl.oauthbearer.token.endpoint.url", mechanism),
            )
            options = options._replace(login=login)
    except (ConfigError, CredentialsError) as error:
        raise InvalidSettings([Problem(f"listener {security.listener.name}", "", str(error))]) from None
    return options


# --- services


class ClusterServices:
    """The services of one broker. The methods are called in their order, once each."""

    def __init__(self, services: Services, open_tree: TreeOpener) -> None:
        settings = services.settings
        self._services = services
        self._tasks: set[asyncio.Task[Any]] = set()
        self.damaged: Collection[TopicPartition] = ()
        """Partitions whose logs have lost records: other brokers have them."""
        services.config.in_cluster = True
        self._connecting = inter_broker_options(settings, f"broker-{services.node_id}")
        self.links = BrokerLinks(self._endpoint_of, self._connecting, self._begin_proof, services.complain)
        dependencies = ControllerDependencies(
            services.random,
            SettingsRules(),
            TopicDefaults(settings.num_partitions, settings.default_replication_factor, settings.delete_topic_enable),
            cluster_wide_from_file(settings),
            self.links,
        )
        self.membership = Membership(
            services.node_id,
            open_tree,
            dependencies,
            services.clock,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            is_deleted=lambda topic: services.replicas.is_deleted(topic),
            initial_users=settings.penstock_initial_users.settings,
        )
        self._connection_detector = ConnectionFailureDetector(
            self.membership,
            self._endpoint_of,
            settings.zookeeper_session_timeout_ms,
            None if self._connecting.security_protocol == "PLAINTEXT" else self._wait_until_closed,
        )
        self._probe_detector = ProbeFailureDetector(self.membership, self.links, settings.zookeeper_session_timeout_ms)

    def _begin_proof(self, broker_id: int) -> ConnectingProof:
        services = self._services
        nonce = services.random.random_bytes(NONCE_BYTES)
        return ConnectingProof(self.membership.secret, services.node_id, broker_id, nonce)

    def _endpoint_of(self, broker_id: int) -> Endpoint | None:
        """Where another broker listens to brokers; None if it is not registered."""
        controller = self.membership.controller
        # The controller knows a broker that has just joined before any image names it.
        image = self.membership.image if controller is None else controller.image
        return image.endpoint(broker_id, self._services.settings.inter_broker_listener.name)

    async def _wait_until_closed(self, endpoint: Endpoint) -> None:
        """Hold a connection to a listener that closes those which do not authenticate. OSError."""
        try:
            connection = await open_connection(Address(endpoint.host, endpoint.port), self._connecting)
        except UnusableAddress as error:
            kind = ConnectionRefusedError if error.cause is Cause.REFUSED else ConnectionError
            raise kind(error.message) from error
        except PenstockError as error:
            raise ConnectionError(error.message) from error
        try:
            await connection.wait_lost()
        finally:
            connection.abort()

    # --- start

    async def open(self) -> ClusterImage:
        """Open a session; returns what the tree holds."""
        services = self._services
        folders = services.settings.log_dirs
        image = await self.membership.open(lambda tree: cluster_id_to_keep(tree, services.files, folders))
        self._previous_epoch = read_previous_epoch(services.files, folders)
        self.outdated_folders = self._previous_epoch.outdated
        clear_clean_shutdown(services.files, folders)
        for name, text in overridden(services.settings, image).items():
            if layout.DEFAULT_BROKER in image.broker_configs:
                logger.warning(
                    "setting ignored, the cluster has one value for all brokers: %s=%s; change it with "
                    "`penstock configs alter` for the default broker",
                    name,
                    text,
                )
        return image

    def remove_moved_partitions(self, image: ClusterImage) -> None:
        """Delete the logs of partitions that moved to other brokers."""
        logs = self._services.replicas.logs
        moved = [
            (hosted.topic, hosted.partition)
            for hosted in logs.logs()
            for partition in (image.partition(hosted.topic, hosted.partition),)
            if partition is not None and self._services.node_id not in (*partition.replicas, *partition.removing)
        ]
        if moved:
            first = ",".join(f"{topic}-{index}" for topic, index in moved[:5])
            logger.info("logs of moved partitions deleted: partitions=%d first=%s", len(moved), first)
            logs.delete_all(moved, self._services.clock.now_ms())

    def start_replication(self) -> None:
        services, settings = self._services, self._services.settings
        self._throttle = Throttle(UNLIMITED, self._is_following_throttled)
        services.replicas.throttle = Throttle(UNLIMITED, self._is_leading_throttled)
        self.fetchers = services.replicas.fetchers = ReplicaFetcherManager(
            services.node_id,
            lambda: self.membership.broker_epoch,
            self.links,
            services.commits,
            services.loop,
            settings.replication,
            self._throttle,
            lambda partition, _: services.replicas.logs.report_failure(partition.topic, partition.index),
        )
        self._alter_partition_manager = AlterPartitionManager(
            services.replicas,
            services.node_id,
            lambda: self.membership.broker_epoch,
            services.replicas.online,
            self.membership.alter_isrs,
            lambda: services.settings.replica_lag_time_max_ms,
            services.clock.monotonic_ms,
        )
        self._set_rates(settings)
        services.config.listen(self._set_rates)

    def _set_rates(self, settings: BrokerSettings) -> None:
        """The settings may change while the broker runs."""
        services = self._services
        _set_rate(self._throttle, settings.follower_replication_throttled_rate, services.loop.time() * 1000)
        if services.replicas.throttle is not None:
            now_ms = services.clock.monotonic_ms()
            _set_rate(services.replicas.throttle, settings.leader_replication_throttled_rate, now_ms)

    def _is_following_throttled(self, topic: str, index: int) -> bool:
        return self._is_in(self._topic_settings(topic).follower_throttled_replicas, index)

    def _is_leading_throttled(self, topic: str, index: int) -> bool:
        return self._is_in(self._topic_settings(topic).leader_throttled_replicas, index)

    def _topic_settings(self, topic: str) -> TopicSettings:
        return self._services.config.topic(self.membership.image, topic)

    def _is_in(self, throttled: tuple[str, ...], index: int) -> bool:
        return "*" in throttled or f"{index}:{self._services.node_id}" in throttled

    async def join(self) -> None:
        """Join the cluster; returns when the first image is applied. NoDirectoryOnline if all data folders fail."""
        services = self._services
        endpoints = tuple(Endpoint(each.name, each.protocol, each.host, each.port) for each in services.advertised)
        is_emptied = self._previous_epoch.is_emptied or bool(self.damaged)
        registration = BrokerRegistration(
            services.node_id,
            endpoints,
            services.settings.broker_rack,
            services.clock.now_ms(),
            clean_epoch=self._previous_epoch.clean_epoch,
            is_emptied=is_emptied,
            kept=self._kept_replicas() if is_emptied else {},
            offline=services.replicas.offline_replicas(self.membership.image),
        )
        await self.membership.join(registration)
        self._last_epoch = self.membership.broker_epoch
        self._write_broker_epoch(clean=False)
        services.replicas.logs.require_online()
        self.report_offline_replicas()
        self._connection_detector.start()
        self._probe_detector.start()

    def _kept_replicas(self) -> ReplicaSet:
        """The replicas in data folders that are neither new nor failed, without damaged ones."""
        new = self._previous_epoch.new_folders
        image = self.membership.image
        found: dict[str, set[int]] = {}
        for directory in self._services.replicas.logs.directories:
            if directory.path not in new and directory.failure is None:
                for topic, index in {*directory.hosted, *directory.damaged}.difference(self.damaged):
                    found.setdefault(topic, set()).add(index)
        return {
            name: TopicReplicas(image.topics[name].topic_id, frozenset(indexes))
            for name, indexes in found.items()
            if name in image.topics
        }

    def folder_failed(self) -> None:
        """A data folder has failed: note that in the others, then tell the controller which replicas are offline."""
        self._services.replicas.folder_failed()
        self._write_broker_epoch(clean=False)
        self.report_offline_replicas()

    def report_offline_replicas(self, image: ClusterImage | None = None) -> None:
        """Tell the controller which replicas are in failed data folders, if that has changed.

        While an image is being applied, it is not the membership's yet, and has to be given.
        """
        known = self.membership.image if image is None else image
        self.membership.set_offline_replicas(self._services.replicas.offline_replicas(known))

    def _write_broker_epoch(self, *, clean: bool) -> None:
        """In the data folders that have not failed. One that cannot be written to fails now."""
        logs, files = self._services.replicas.logs, self._services.files
        for directory in logs.directories:
            online = [each.path for each in logs.directories if each.failure is None]
            failed = [path.rstrip("/") or "/" for path in logs.offline]
            if directory.path in online:
                try:
                    with directory.disk():
                        write_broker_epoch(
                            files, [directory.path], self._last_epoch, clean=clean, others=online, failed=failed
                        )
                except LogError as error:
                    logger.error("broker epoch not written: path=%s error=%s", directory.path, error)

    def start_background_tasks(self, tasks: BackgroundTasks) -> None:
        settings = self._services.settings
        tasks.every("in-sync replicas", _ISR_TICK_MS, lambda: self._spawn(self._alter_partition_manager.tick()))
        if settings.auto_leader_rebalance_enable:
            seconds = settings.leader_imbalance_check_interval_seconds
            tasks.every("preferred leaders", seconds * 1000, lambda: self._spawn(self._balance()))

    async def _balance(self) -> None:
        controller = self.membership.controller
        if controller is None:
            return
        try:
            elected = await controller.balance_leaders(self._services.settings.leader_imbalance_per_broker_percentage)
        except ClusterError as error:
            logger.warning("leaders not balanced: error=%s", error)
        else:
            if elected:
                logger.info("preferred leaders elected: partitions=%d", elected)

    def _spawn(self, work: Any) -> None:
        task = self._services.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- metrics

    def under_replicated(self) -> int:
        return sum(1 for each in self._services.replicas.led() if each.leadership and not each.leadership.is_complete)

    def is_controller(self) -> int:
        return int(self.membership.controller is not None)

    def offline_partitions(self) -> int:
        controller = self.membership.controller
        if controller is None:
            return 0
        image = controller.image
        return sum(
            image.live_leader(partition) < 0
            for topic in image.topics.values()
            if topic.name not in image.deleting
            for partition in topic.partitions
        )

    def max_lag(self) -> int:
        return max(self.fetchers.lags().values(), default=0)

    # --- stop

    async def leave(self) -> None:
        """Move leaderships to other brokers, and stop replication."""
        settings = self._services.settings
        within_ms = settings.controlled_shutdown_max_retries * settings.controlled_shutdown_retry_backoff_ms
        if settings.controlled_shutdown_enable:
            await controlled_shutdown(self.membership, self._services.clock, within_ms)
        await self.stop_replication()

    async def withdraw(self, reason: str) -> None:
        """Leave the cluster at once, without a controlled shutdown, because no data folder is left: other in-sync
        replicas take over.

        The ports close, because this broker's image of the cluster would become stale.
        """
        logger.error(
            "broker leaves the cluster, in-sync replicas on other brokers take over: broker=%d reason=%s. Repair or "
            "replace the disk, then restart this broker",
            self._services.node_id,
            reason,
        )
        await self._services.server.close(_WITHDRAW_MS)
        await self.stop_replication()
        self._services.replicas.close()
        await self.close()

    async def stop_replication(self) -> None:
        """Stop fetching, ISR changes and applying images."""
        self._last_epoch = self.membership.broker_epoch
        await self._connection_detector.close()
        await self._probe_detector.close()
        await self.membership.stop()
        for task in tuple(self._tasks):
            task.cancel()
        if hasattr(self, "fetchers"):
            await self.fetchers.close()

    async def close(self) -> None:
        """End the session: the other brokers notice at once."""
        await self.membership.close()
        self.links.close()

    def record_clean_shutdown(self) -> None:
        """Call it after the data folders are closed."""
        self._write_broker_epoch(clean=True)


def _set_rate(throttle: Throttle, rate_bytes_s: int, now_ms: float) -> None:
    wanted = UNLIMITED if rate_bytes_s >= _NO_RATE else float(rate_bytes_s)
    if wanted != throttle.rate_bytes_s:
        throttle.set_rate(wanted, now_ms)


async def resolve_broker_id(settings: BrokerSettings, files: Files, open_tree: TreeOpener) -> int:
    """The id of a broker without broker.id: the one in its data folders, or a new one from the tree. ClusterError."""
    for folder in settings.log_dirs:
        try:
            meta = read_meta(files, folder)
        except (OSError, MetadataFileError):
            continue  # opening the folder reports what is wrong with it
        if meta is not None and meta.node_id is not None:
            return meta.node_id
    tree = await open_tree()
    try:
        await ensure_path(tree, layout.SEQUENCE_IDS)
        return settings.reserved_broker_max_id + await tree.set(layout.SEQUENCE_IDS, b"")
    finally:
        await tree.close()


def zookeeper_opener(settings: BrokerSettings) -> TreeOpener:
    """Opens sessions with the ZooKeeper in zookeeper.connect."""
    connect = settings.zookeeper_connect
    if connect is None:
        raise ValueError("zookeeper.connect is not set")

    async def open_tree() -> Tree:
        from penstock.cluster.tree.zookeeper.tree import open_zookeeper_tree

        return await open_zookeeper_tree(
            connect,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            connection_timeout_ms=settings.zookeeper_connection_timeout_ms,
            security=zookeeper_security(settings),
        )

    return open_tree


def zookeeper_security(settings: BrokerSettings) -> ZooKeeperSecurity:
    """How sessions with ZooKeeper authenticate, from the settings. ZooKeeperAuthFailed."""
    from penstock.cluster.tree.zookeeper.security import ZooKeeperSecurity

    return ZooKeeperSecurity(
        user=settings.zookeeper_auth_user,
        password=settings.zookeeper_auth_password,
        is_sasl=settings.zookeeper_auth_mechanism != "digest",
        sets_acls=settings.zookeeper_set_acl,
        uses_tls=settings.zookeeper_ssl_client_enable,
        ca_file=settings.zookeeper_ssl_truststore_location,
        key_file=settings.zookeeper_ssl_keystore_location,
        key_password=settings.zookeeper_ssl_keystore_password,
        checks_host_name=settings.zookeeper_ssl_endpoint_identification_algorithm.upper() == "HTTPS",
    )

"""A broker: the composition root.

It makes the parts, starts them in an order in which each finds what it needs, and stops them in reverse:

    ports reserved ─> HTTP ─> metadata tree ─> data folders, recovered ─> partitions led ─> groups ─> ports open

Parts do not know the broker. Handlers and parts share `Services`, which the broker fills while it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.background_tasks import BackgroundTasks, add_log_tasks
from penstock.broker.console_process import ConsoleProcess
from penstock.broker.down_conversion import DownConverter
from penstock.broker.dynamic_config import DynamicConfig, SettingsRules, configure_cleaner, network_limits
from penstock.broker.fetch_session import EVICTION_MS, FetchSessions
from penstock.broker.handlers.create_topics import AutoTopicCreation
from penstock.broker.handlers.metadata import MetadataAnswers
from penstock.broker.handlers.schema_ids import schema_ids
from penstock.broker.handlers.write_txn_markers import append_markers
from penstock.broker.http import HealthCheck, HttpCredentials, HttpServer, health_route, known_hosts, metrics_route
from penstock.broker.log_startup import SET_ASIDE, LogLoader, cluster_id_to_keep, set_strays_aside
from penstock.broker.metrics import BrokerMetrics, TimedWorkers
from penstock.broker.request import BrokerState, LongRequests, Services
from penstock.broker.router import Router
from penstock.broker.settings import BrokerSettings, Listener, topic_settings, with_bound_ports
from penstock.cluster.controller.configs import MIN_INSYNC
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.image import ClusterImage, diff
from penstock.cluster.membership.standalone import Metadata, StandaloneMetadata
from penstock.cluster.tree.embedded import EmbeddedTree, open_embedded_tree
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.coordination.transactions.broker_requests import MarkerSender, TransactionClient
from penstock.coordination.transactions.transaction_coordinator import TransactionCoordinator
from penstock.log.compaction.log_cleaner import LogCleaner
from penstock.log.errors import LogFailed
from penstock.log.group_commit import GroupCommit, InlineSync
from penstock.log.log_dirs.log_manager import LogManager
from penstock.replication.replica_manager import LeadershipChanges, ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.environment import Environment, Reservation, SystemEnvironment
from penstock.runtime.files import Files
from penstock.runtime.process import SystemProcess
from penstock.runtime.randomness import Random
from penstock.runtime.threads import InlineWorkers, Workers

if TYPE_CHECKING:
    from penstock.broker.audit import AuditLog
    from penstock.broker.cluster_services import ClusterServices
    from penstock.cluster.broker_links import Links
    from penstock.cluster.membership.broker_lifecycle import TreeOpener

logger = logging.getLogger(__name__)

METADATA_FOLDER: Final = ".metadata"
_WORKER_THREADS: Final = 4
# Each may hold what the records of a request decompress to. They are not those of the syncs, which must not wait.
_VALIDATION_THREADS: Final = 2
# A stop waits for the disk, which handles many syncs together.
_STOP_THREADS: Final = 8
_LOG_CREATION_THREADS: Final = 8
_STOP_TIMEOUT_MS: Final = 5_000
_RESIGN_S: Final = 1.0


ConsoleOf = Callable[["Broker", str], Sequence[str]]
"""The command line of a console for a broker, which listens in a folder."""


class Broker:
    """One broker in this process, on the running event loop. `start` it, `stop` it, once each."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        files: Files | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        environment: Environment | None = None,
        tree_opener: TreeOpener | None = None,
        console: ConsoleOf | None = None,
    ) -> None:
        """`console` makes the command line of the console that the HTTP port shows. `environment` is the machine by
        default, with `files`, `clock` and `random` if given. `tree_opener` opens sessions with the metadata tree of a
        cluster; without it, zookeeper.connect names the tree, if there is one.
        """
        self._environment: Environment = environment or SystemEnvironment(clock=clock, random=random, files=files)
        self._given_id = settings.broker_id
        self._tree_opener = tree_opener
        self._in_cluster = tree_opener is not None or not settings.stands_alone
        self.http_port = http_port
        self._http_host = http_host
        self._console = console
        self.services = Services(
            clock=self._environment.clock,
            random=self._environment.random,
            files=self._environment.files,
            config=DynamicConfig(settings, max(0, settings.broker_id)),
            metrics=BrokerMetrics(SystemProcess()),
            sessions=FetchSessions(
                settings.max_incremental_fetch_session_cache_slots,
                EVICTION_MS,
                self._environment.random,
                max_partitions=settings.max_incremental_fetch_session_cache_partitions,
            ),
            metadata_answers=MetadataAnswers(),
        )
        self.router = Router(self.services, in_cluster=self._in_cluster)
        self.health = HealthCheck(self.services)
        self._cluster_services: ClusterServices | None = None
        self._closers: list[Callable[[], Any]] = []

    # --- for users and observers

    @property
    def settings(self) -> BrokerSettings:
        return self.services.settings

    @property
    def advertised(self) -> tuple[Listener, ...]:
        return self.services.advertised

    @property
    def cluster(self) -> Metadata:
        return self.services.cluster

    @property
    def replicas(self) -> ReplicaManager:
        return self.services.replicas

    @property
    def is_ready(self) -> bool:
        return self.services.is_ready

    # --- start

    async def start(self) -> None:
        """Start; returns when clients are served. If it raises, nothing is left running or locked."""
        try:
            await self._start()
        except BaseException:
            await self._close_all()
            raise

    async def _start(self) -> None:
        services, settings = self.services, self.settings
        services.loop = asyncio.get_running_loop()
        services.call_later = services.loop.call_later
        services.long_requests = LongRequests(services)
        services.topic_creation = AutoTopicCreation(services)
        workers = self._workers(_WORKER_THREADS)
        services.conversions = DownConverter(self._workers(1))
        services.server = self._environment.server(self.router, network_limits(settings))
        services.config.listen(lambda changed: services.server.set_limits(network_limits(changed)))
        self._closers.append(lambda: services.server.close(_STOP_TIMEOUT_MS))
        self._start_security()
        reserved = {each.name: self._reserve(each.host, each.port) for each in settings.listeners}
        ports = {name: reservation.port for name, reservation in reserved.items()}
        services.advertised = with_bound_ports(settings.advertised_listeners, ports)
        proxied = settings.penstock_proxy_listeners
        services.proxied = {each.name: each for each in services.advertised if each.name in proxied}
        if self.http_port is not None:
            await self._start_http(self.http_port)
        if self._in_cluster:
            await self._start_in_cluster(workers, reserved)
        else:
            await self._start_standalone(workers)
            self._open_ports(reserved)
        services.state = BrokerState.RUNNING
        listeners = ",".join(str(each) for each in services.advertised)
        cluster_id = services.cluster.image.cluster_id
        logger.info("broker started: id=%d listeners=%s cluster=%s", services.node_id, listeners, cluster_id)

    def _start_security(self) -> None:
        """Load certificates and credentials; InvalidSettings before anything else is opened."""
        if all(each.protocol == "PLAINTEXT" for each in self.settings.listeners):
            return
        # Imported here because it takes time, and most tests and first steps need none of it.
        from penstock.broker.authentication import MAINTENANCE_MS, secure_listeners, users_in_tree

        services = self.services
        listeners = secure_listeners(services, self.settings, users_in_tree(services), self._workers(1))
        self.router.listeners = listeners
        tasks = BackgroundTasks(services.call_later)
        self._closers.append(tasks.close)
        for listener in listeners.values():
            listener.maintain()
            tasks.every(f"certificates of {listener.name}", MAINTENANCE_MS, listener.maintain)

    def _workers(self, threads: int) -> Workers:
        workers = self._environment.workers(threads)
        self._closers.append(workers.close)
        return workers

    def _reserve(self, host: str, port: int) -> Reservation:
        reservation = self._environment.reserve(host, port)
        self._closers.append(reservation.release)
        return reservation

    def _open_ports(self, reserved: Mapping[str, Reservation]) -> None:
        for listener, reservation in reserved.items():
            reservation.release()
            secure = self.router.listeners.get(listener)
            tls = None if secure is None else secure.tls
            self.services.server.listen(reservation.host, reservation.port, listener, tls)

    async def _start_http(self, port: int) -> None:
        services = self.services
        services.metrics.read_from(services, lambda: self._cluster_services)
        if self.settings.penstock_metrics_jmx_names:
            services.metrics.show_jmx_names()
        routes = {"/metrics": metrics_route(services.metrics.registry.render), "/health": health_route(self.health)}
        settings = self.settings
        credentials = HttpCredentials(
            settings.penstock_http_token,
            settings.penstock_http_user,
            settings.penstock_http_password,
            allow_anonymous=settings.penstock_http_allow_anonymous,
        )
        hosts = known_hosts(services, self._http_host)
        console = None
        if self._console is not None and settings.penstock_console:
            make = self._console
            console = ConsoleProcess(lambda folder: make(self, folder))
            self._closers.append(console.close)
        http = HttpServer(routes, hosts=hosts, credentials=credentials, open_paths=("/health",), fallback=console)
        self.http_port = await http.listen(self._http_host, port)
        self._closers.append(http.close)

    async def _start_standalone(self, workers: Workers) -> None:
        services = self.services
        folder = f"{self.settings.log_dirs[0]}/{METADATA_FOLDER}"
        tree = open_embedded_tree(services.files, folder, workers, services.random)
        self._closers.append(tree.close)
        metadata = await self._start_metadata(tree)
        cleaner = await self._start_logs(workers)
        self._start_coordinators()
        await services.replicas.start(metadata.image)
        await self._until_settled()
        self._follow_images()
        # Before the data folders: changes under way finish first.
        self._closers.append(metadata.close)
        self._start_background_tasks(cleaner)
        demanded = topic_settings(self.settings, {}).min_insync_replicas
        if demanded > 1:
            logger.warning(
                "writes with acks=all are rejected, except to topics that set 1; this broker stands alone: %s=%d",
                MIN_INSYNC,
                demanded,
            )

    async def _start_in_cluster(self, workers: Workers, reserved: Mapping[str, Reservation]) -> None:
        # Imported here because it takes time.
        from penstock.broker.cluster_services import ClusterServices, resolve_broker_id, zookeeper_opener

        services = self.services
        open_tree = self._tree_opener or zookeeper_opener(self.settings)
        if self._given_id < 0:
            services.config.set_node_id(await resolve_broker_id(self.settings, services.files, open_tree))
        cluster_services = ClusterServices(services, open_tree)
        self._closers.append(cluster_services.close)
        image = await cluster_services.open()
        self._cluster_services = cluster_services
        services.cluster = services.membership_or_none = cluster_services.membership
        services.config.apply(image)
        cleaner = await self._start_logs(workers)
        cluster_services.remove_moved_partitions(image)
        self._start_coordinators()
        cluster_services.start_replication()
        self._closers.append(cluster_services.stop_replication)
        self._follow_images()
        self._start_background_tasks(cleaner)
        self._start_proxy(cluster_services.links)
        services.state = BrokerState.JOINING
        self._open_ports(reserved)
        await cluster_services.join()

    def _start_proxy(self, links: Links) -> None:
        services = self.services
        if not services.proxied:
            return
        # Imported here because most brokers do without.
        from penstock.broker.handlers.proxy import Proxy

        self.router.proxy = proxy = Proxy(services, links)
        self._closers += [services.cluster.listen(proxy.follow), proxy.close]

    async def _start_metadata(self, tree: EmbeddedTree) -> StandaloneMetadata:
        services, settings = self.services, self.settings
        services.cluster = metadata = StandaloneMetadata(
            tree,
            services.clock,
            services.random,
            SettingsRules(),
            broker_id=services.node_id,
            defaults=TopicDefaults(
                settings.num_partitions, settings.default_replication_factor, settings.delete_topic_enable
            ),
            initial_users=settings.penstock_initial_users.settings,
        )
        endpoints = tuple(Endpoint(each.name, each.protocol, each.host, each.port) for each in services.advertised)
        registration = BrokerRegistration(services.node_id, endpoints, settings.broker_rack, services.clock.now_ms())
        kept_id = await cluster_id_to_keep(tree, services.files, settings.log_dirs)
        await metadata.start(registration, cluster_id=kept_id)
        self._closers.append(metadata.close)
        services.config.apply(metadata.image)
        return metadata

    async def _start_logs(self, workers: Workers) -> LogCleaner:
        services, settings, environment = self.services, self.settings, self._environment
        image = services.cluster.image
        services.commits = self._group_commit(workers)
        logs = LogManager.open(
            services.files,
            settings.log_dirs,
            node_id=services.node_id,
            cluster_id=image.cluster_id,
            random=services.random,
            workers=workers,
            commits=services.commits,
            on_offline=self._folder_failed,
            creating_threads=environment.threads(_LOG_CREATION_THREADS),
            topic_ids={name: topic.topic_id for name, topic in image.topics.items()},
            outdated=() if self._cluster_services is None else self._cluster_services.outdated_folders,
        )
        logs.make_policy = settings.log_retention_policy_class
        threads = settings.num_recovery_threads_per_data_dir
        self._closers.append(
            lambda: logs.close(
                environment.threads(max(_STOP_THREADS, services.settings.num_recovery_threads_per_data_dir))
            )
        )
        set_strays_aside(logs, image, everything=settings.penstock_strays == SET_ASIDE)
        loading = self.health.loading = LogLoader(logs, services.clock)
        await loading.run(workers, lambda topic: services.config.topic(image, topic).log, environment.threads(threads))
        damaged = loading.settle_damage(image, services.node_id)
        if self._cluster_services is not None:
            self._cluster_services.damaged = damaged
        services.replicas = ReplicaManager(
            logs,
            services.commits,
            services.config.topic,
            broker_id=services.node_id,
            clock=services.clock,
            call_later=services.call_later,
        )
        self._closers.append(services.replicas.close)
        services.validators = self._workers(_VALIDATION_THREADS)
        services.schema_ids = schema_ids(self.settings, services.clock)
        services.schema_workers = self._workers(_VALIDATION_THREADS)
        cleaner = LogCleaner(logs, self._workers(1), services.clock)
        configure_cleaner(cleaner, settings, services.clock)
        services.config.listen(lambda changed: configure_cleaner(cleaner, changed, services.clock))
        self._closers.append(cleaner.close)
        logs.moves.is_busy = cleaner.is_cleaning
        return cleaner

    def _group_commit(self, workers: Workers) -> GroupCommit:
        def synced(seconds: float) -> None:
            self.services.metrics.log_flush_seconds.observe(seconds)
            inline.took(seconds * 1000)

        stopwatch_s = self._environment.stopwatch_s
        inline = InlineSync(TimedWorkers(InlineWorkers(), synced, stopwatch_s), self.services.loop.call_soon)
        return GroupCommit(TimedWorkers(workers, synced, stopwatch_s), inline)

    def _start_coordinators(self) -> None:
        services = self.services
        services.groups = GroupCoordinator(self.settings.groups, services.random, services.clock, services.call_later)
        self._closers.append(services.groups.close)
        self._start_transactions()

        def changed(changes: LeadershipChanges) -> None:
            services.groups.on_leadership_change(changes)
            services.transactions.on_leadership_change(changes)

        services.replicas.on_leadership_change = changed

    def _start_transactions(self) -> None:
        services, cluster_services = self.services, self._cluster_services
        links = None if cluster_services is None else cluster_services.links

        def image() -> ClusterImage:
            return services.cluster.image

        services.transactions = transactions = TransactionCoordinator(
            self.settings.transactions,
            services.clock,
            services.call_later,
            image,
            lambda: services.cluster.allocate_producer_id(),
        )
        transactions.sender = MarkerSender(
            services.node_id,
            image,
            partial(append_markers, services),
            links,
            services.call_later,
            transactions.now_ms,
        )
        services.transaction_client = TransactionClient(services.node_id, image, transactions, links)
        self._closers += [transactions.sender.close, services.transaction_client.close, transactions.close]

    def _start_access_control(self) -> None:
        settings, services = self.settings, self.services
        if settings.authorizer_class_name:
            # Imported here because most brokers do without.
            from penstock.broker.authorization import Authorizer

            services.authorizer = authorizer = Authorizer(settings)
            authorizer.follow(services.cluster.image, services.cluster.image)
            self._closers.append(services.cluster.listen(authorizer.follow))
        if settings.penstock_audit_log_file is not None or settings.penstock_audit_topic is not None:
            services.audit = self._audit_log()
        if services.authorizer is not None or services.audit is not None:
            from penstock.broker.authorization import AccessControl

            services.access_control = AccessControl(services.authorizer, services.audit)

    def _audit_log(self) -> AuditLog:
        from penstock.broker.audit import AuditLog, FileSink, RotatingFile, TopicSink, both

        settings, services = self.settings, self.services
        sinks: list[Callable[[Sequence[bytes]], None]] = []
        if settings.penstock_audit_log_file is not None:
            file = RotatingFile(
                services.files,
                settings.penstock_audit_log_file,
                settings.penstock_audit_log_file_max_bytes,
                settings.penstock_audit_log_file_backups,
            )
            file.open()  # a path that cannot be written to is reported now
            workers = self._environment.workers(1)
            sink = FileSink(file, workers)
            self._closers += [sink.close, workers.close]
            sinks.append(sink)
        if settings.penstock_audit_topic is not None:
            sinks.append(TopicSink(services, settings.penstock_audit_topic))
        return AuditLog(services, both(sinks))

    def _follow_images(self) -> None:
        services = self.services
        services.throttling.follow(services.cluster.image)
        self._start_access_control()
        self._closers.append(services.cluster.listen(self._on_image))
        self._closers.append(services.cluster.prepare(services.replicas.create_logs))

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        services, change = self.services, diff(old, new)
        if change.topic_configs_changed or change.broker_configs_changed:
            # First, because what an ISR means depends on min.insync.replicas.
            for name in services.config.follow(old, new):
                services.replicas.update_settings(name, services.config.topic(new, name))
        if change.entities_changed:
            services.throttling.follow(new)
        services.replicas.apply(old, new)
        if self._cluster_services is not None and services.replicas.logs.offline:
            self._cluster_services.report_offline_replicas(new)
        for name in change.topics_removed:
            services.metrics.drop_topic(name)

    def _start_background_tasks(self, cleaner: LogCleaner) -> None:
        tasks = BackgroundTasks(self.services.call_later)
        self._closers.append(tasks.close)
        add_log_tasks(tasks, self.services, cleaner)
        if self._cluster_services is not None:
            self._cluster_services.start_background_tasks(tasks)

    async def _until_settled(self) -> None:
        """Wait until all records found are durable: a log end that a client has seen must not move back."""
        replicas = self.services.replicas
        settled = self.services.loop.create_future()
        replicas.when_settled(replicas.led(), lambda: settled.set_result(None))
        await settled

    # --- stop

    def _folder_failed(self, path: str, error: LogFailed) -> None:
        """In a cluster other brokers take over what was in the folder (KIP-112), or everything if it was the last one:
        then this broker withdraws and waits for its operator.
        """
        services, cluster_services = self.services, self._cluster_services
        if cluster_services is None or not services.is_ready:
            return
        if services.replicas.logs.is_online:
            cluster_services.folder_failed()
            return
        services.state = BrokerState.WITHDRAWN
        reason = f"data folder {path} failed: {error.reason}"
        services.spawn(cluster_services.withdraw(reason), lambda _: None)

    async def stop(self) -> bool:
        """Answer open requests, make everything durable, record a clean shutdown; whether it was clean."""
        services, cluster_services = self.services, self._cluster_services
        if cluster_services is not None and services.is_ready:
            await cluster_services.leave()
            # Requests that wait for replicas would delay the stop: those brokers may be stopping too.
            self._closers.append(services.call_later(_RESIGN_S, services.replicas.close).cancel)
        services.state = BrokerState.STOPPING
        services.cancel_tasks()
        clean = await self._close_all()
        if clean and cluster_services is not None:
            cluster_services.record_clean_shutdown()
        logger.info("broker stopped: id=%d clean=%s", services.node_id, str(clean).lower())
        return clean

    async def _close_all(self) -> bool:
        closers = list(reversed(self._closers))
        self._closers = []
        if hasattr(self.services, "server"):
            # First, whatever was started after it: nothing may be served while the parts close.
            await self.services.server.close(_STOP_TIMEOUT_MS)
        clean = True
        for close in closers:
            try:
                outcome = close()
                if asyncio.iscoroutine(outcome):
                    await outcome
                clean = clean and outcome is not False  # data folders return whether they closed cleanly
            except Exception:
                logger.exception("part not closed: broker=%d", self.services.node_id)
                clean = False
        return clean

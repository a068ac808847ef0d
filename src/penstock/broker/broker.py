"""A broker: everything put together.

Noun: the composition root. It makes the parts, starts them in an order in which each finds what it needs, and stops
them in the reverse.

    ports reserved ─> HTTP ─> metadata tree ─> data folders, recovered ─> partitions led ─> groups ─> ports open

Rule: parts do not know the broker; handlers do, and only what is public here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock import __version__
from penstock.broker.config_rules import SettingsRules
from penstock.broker.fetch_conversion import Conversions
from penstock.broker.fetch_sessions import EVICTION_MS, FetchSessions
from penstock.broker.handlers.create_topics import with_preset
from penstock.broker.handlers.metadata import MetadataAnswers
from penstock.broker.http_server import Health, HttpServer, health_route, metrics_route
from penstock.broker.lives import forget_life
from penstock.broker.log_loading import LogLoading
from penstock.broker.long_requests import LongWork
from penstock.broker.metrics import ApiMetrics, BrokerMetrics, LogFigures, NetworkFigures
from penstock.broker.response_errors import counted
from penstock.broker.roles import Roles
from penstock.broker.router import Router
from penstock.broker.served import SERVED, Served
from penstock.broker.settings import BrokerSettings, InvalidSettings, topic_settings, with_bound_ports
from penstock.broker.settings.topic_settings import TopicSettings
from penstock.broker.strays import SET_ASIDE, cluster_id_to_keep, set_strays_aside
from penstock.broker.timed_workers import TimedWorkers
from penstock.broker.topic_figures import TopicFigures
from penstock.broker.upkeep import Timer, Upkeep
from penstock.cluster.configs import MIN_INSYNC
from penstock.cluster.embedded_tree import EmbeddedTree, open_embedded_tree
from penstock.cluster.errors import ClusterError
from penstock.cluster.image import ClusterImage, diff
from penstock.cluster.layout import BrokerRegistration, Endpoint
from penstock.cluster.service import ClusterMetadata
from penstock.cluster.topics import NewTopic, TopicDefaults
from penstock.coordination.service import OFFSETS_TOPIC, GroupService
from penstock.coordination.settings import GroupSettings
from penstock.log.compaction.cleaner import LogCleaner
from penstock.log.errors import LogFailed
from penstock.log.flush import GroupCommit
from penstock.log.folders.manager import LogManager
from penstock.log.prompt_sync import PromptSync
from penstock.log.settings import LogSettings
from penstock.replication.links import LinkLost
from penstock.replication.replicas import Replicas
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.network import UNBOUNDED, Limits
from penstock.runtime.process import SystemProcess
from penstock.runtime.randomness import Random
from penstock.runtime.workers import InlineWorkers, Workers
from penstock.runtime.world import Reservation, SystemWorld, World
from penstock.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from penstock.broker.clustering import Clustering
    from penstock.broker.membership import Membership, TreeOpener

logger = logging.getLogger(__name__)

METADATA_FOLDER: Final = ".metadata"
_WORKER_THREADS = 4
# Each may hold what the records of a request decompress to. They are not those of the syncs, lest these wait for them.
_VALIDATION_THREADS = 2
_CHECKPOINT_MS = 5_000
_FLUSH_TICK_MS = 1_000
_RETRY_MS = 1_000
_MOVES_MS = 50
_REMOVAL_MS = 1_000
_STOP_TIMEOUT_MS = 5_000
_RESIGN_S = 1.0
_SETTINGS_KEPT = 1_024
# A stop waits for the disk, which takes many syncs together.
_STOP_THREADS = 8
_MAKING_THREADS = 8


class TooFewBrokers(ClusterError):
    """A topic of the brokers' own cannot be made yet."""

    def __init__(self, topic: str, factor: int, brokers: int) -> None:
        super().__init__(
            f"{topic} is to have {factor} replicas and {brokers} brokers are there: groups wait for the others; a "
            "smaller cluster needs offsets.topic.replication.factor set"
        )


class Node(NamedTuple):
    """A broker as clients are told of it."""

    id: int
    host: str
    port: int
    rack: str | None


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
        world: World | None = None,
        tree_opener: TreeOpener | None = None,
    ) -> None:
        """Without a `world` it is the machine, with the files, clock and chance that are given. `tree_opener` begins
        sessions with the metadata tree of a cluster; without it, zookeeper.connect says where that is, if there is one.
        """
        self.world: World = world or SystemWorld(clock=clock, random=random, files=files)
        self.node_id = max(0, settings.broker_id)
        self._given = settings
        self.settings = settings.with_broker_id(self.node_id)
        self.files: Files = self.world.files
        self.clock: Clock = self.world.clock
        self.random: Random = self.world.random
        self.served: dict[int, Served] = counted(SERVED)
        self.metrics = BrokerMetrics(SystemProcess())
        self.sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            EVICTION_MS,
            self.random,
            max_partitions=settings.max_incremental_fetch_session_cache_partitions,
        )
        self.long_work = LongWork(self)
        self.metadata_answers = MetadataAnswers()
        self.is_ready = False
        self.http_port = http_port
        self._http_host = http_host
        self._started_ms = self.clock.monotonic_ms()
        self._figures: dict[str, TopicFigures] = {}
        self._topic_settings: dict[tuple[tuple[str, str], ...], TopicSettings] = {}  # by what topics set for themselves
        self._apis: dict[int, ApiMetrics] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._status: str = "starting"
        self._loading: LogLoading | None = None
        self._tree_opener = tree_opener
        self._clustering: Clustering | None = None
        self.cluster: ClusterMetadata | Membership
        self.is_joining = False
        """Whether nothing but the controller is listened to yet."""

    # --- life

    async def start(self) -> None:
        """Come up; returns when clients are served. Whatever it raises, nothing is left running or locked."""
        self.loop = asyncio.get_running_loop()
        self.call_later: Callable[[float, Callable[[], None]], Timer] = self.loop.call_later
        self._closers: list[Callable[[], Any]] = []
        try:
            await self._start()
        except BaseException:
            await self._close_all()
            raise

    async def _start(self) -> None:
        settings = self.settings
        workers = self.world.workers(_WORKER_THREADS)
        self._closers.append(workers.close)
        self.conversions = Conversions(self.world.workers(1))
        self._closers.append(self.conversions.close)
        self.server = self.world.server(Router(self), _limits(settings))
        self._closers.append(lambda: self.server.close(_STOP_TIMEOUT_MS))
        reserved = {each.name: self._reserve(each.host, each.port) for each in settings.listeners}
        ports = {name: reservation.port for name, reservation in reserved.items()}
        self.advertised = with_bound_ports(settings.advertised_listeners, ports)
        if self.http_port is not None:
            await self._start_http()
        if settings.stands_alone and self._tree_opener is None:
            await self._start_alone(workers)
            self._open_ports(reserved.values())
        else:
            await self._start_clustered(workers, reserved.values())
        self.is_ready = True
        self._status = "ok"
        where = ", ".join(str(each) for each in self.advertised)
        logger.info("broker %d serves %s, cluster %s", self.node_id, where, self.cluster.image.cluster_id)

    def _open_ports(self, reserved: Iterable[Reservation]) -> None:
        for reservation in reserved:
            reservation.release()
            self.server.listen(reservation.host, reservation.port)

    async def _start_alone(self, workers: Workers) -> None:
        folder = f"{self.settings.log_dirs[0]}/{METADATA_FOLDER}"
        tree = open_embedded_tree(self.files, folder, workers, self.random)
        self._closers.append(tree.close)
        await self._start_cluster(tree)
        await self._start_logs(workers)
        self._start_groups()
        self.roles = Roles(self.node_id, self.replicas, self.groups, self.settings_in, self.clock)
        await self.roles.take_up(self.cluster.image)
        await self._until_committed()
        self._follow_images()
        self._start_upkeep()
        self.is_ready = True
        if self.settings.min_insync_replicas > 1:
            logger.warning(
                "%s is %d and this broker stands alone: writes with acks=all are rejected, except to topics that set 1",
                MIN_INSYNC,
                self.settings.min_insync_replicas,
            )

    async def _start_clustered(self, workers: Workers, reserved: Iterable[Reservation]) -> None:
        # Only here: it takes time to import.
        from penstock.broker.clustering import Clustering, clustered, number_of_broker, opener_of

        open_tree = self._tree_opener or opener_of(self.settings)
        if self._given.broker_id < 0:
            self.node_id = await number_of_broker(self, open_tree)
            self.settings = self.settings.with_broker_id(self.node_id)
        clustering = Clustering(self, open_tree)
        self._closers.append(clustering.close)
        image = await clustering.open()
        self._clustering = clustering
        self.cluster = clustering.membership
        self.served = counted(clustered(SERVED))
        self._apply_broker_configs(image)
        await self._start_logs(workers)
        clustering.remove_what_moved_away(image)
        self._start_groups()
        fetchers = clustering.start_replication()
        self._closers.append(clustering.stop_following)
        self.roles = Roles(self.node_id, self.replicas, self.groups, self.settings_in, self.clock, fetchers)
        self._follow_images()
        self._start_upkeep()
        self.is_joining = True
        self._open_ports(reserved)
        await clustering.join()
        self.is_joining = False

    def _follow_images(self) -> None:
        self._closers.append(self.cluster.listen(self._on_image))
        self._closers.append(self.cluster.prepare(self.roles.make_logs))
        if self._clustering is None:
            # Before the data folders: what is being made in them is finished first.
            self._closers.append(self.cluster.close)

    def _reserve(self, host: str, port: int) -> Reservation:
        reservation = self.world.reserve(host, port)
        self._closers.append(reservation.release)
        return reservation

    async def _start_cluster(self, tree: EmbeddedTree) -> None:
        settings = self.settings
        self.cluster = alone = ClusterMetadata(
            tree,
            self.clock,
            self.random,
            SettingsRules(),
            broker_id=self.node_id,
            defaults=TopicDefaults(settings.num_partitions, settings.default_replication_factor),
        )
        endpoints = tuple(Endpoint(each.name, each.protocol, each.host, each.port) for each in self.advertised)
        registration = BrokerRegistration(self.node_id, endpoints, settings.broker_rack, self.clock.now_ms())
        kept_id = await cluster_id_to_keep(tree, self.files, settings.log_dirs)
        await alone.start(registration, cluster_id=kept_id)
        self._closers.append(self.cluster.close)
        self._apply_broker_configs(self.cluster.image)

    async def _start_logs(self, workers: Workers) -> None:
        def synced(seconds: float) -> None:
            self.metrics.log_flush_seconds.observe(seconds)
            prompt.took(seconds * 1000)

        seconds = self.world.stopwatch_s
        here = TimedWorkers(InlineWorkers(), synced, seconds)
        prompt = PromptSync(here, self.loop.call_soon)
        self.commits = commits = GroupCommit(TimedWorkers(workers, synced, seconds), prompt)
        logs = LogManager.open(
            self.files,
            self.settings.log_dirs,
            node_id=self.node_id,
            cluster_id=self.cluster.image.cluster_id,
            random=self.random,
            workers=workers,
            commits=commits,
            on_offline=self._folder_failed,
            making_threads=self.world.threads(_MAKING_THREADS),
        )
        threads = self.settings.num_recovery_threads_per_data_dir
        self._closers.append(lambda: logs.close(self.world.threads(max(_STOP_THREADS, threads))))
        set_strays_aside(logs, self.cluster.image, everything=self.settings.penstock_strays == SET_ASIDE)
        self._loading = LogLoading(logs, self.clock)
        await self._loading.run(workers, self.log_settings_of, self.world.threads(threads))
        if self._loading.settle_damage(self.cluster.image, self.node_id):
            forget_life(self.files, self.settings.log_dirs)
        self.replicas = Replicas(logs, commits, broker_id=self.node_id, clock=self.clock, call_later=self.call_later)
        self._closers.append(self.replicas.close)
        self.validators = self.world.workers(_VALIDATION_THREADS)
        self._closers.append(self.validators.close)
        cleaner_workers = self.world.workers(1)
        self._closers.append(cleaner_workers.close)
        self.cleaner = LogCleaner(
            logs, cleaner_workers, self.clock, map_bytes=self.settings.log_cleaner_dedupe_buffer_size
        )
        self._closers.append(self.cleaner.close)
        logs.moves.is_busy = self.cleaner.is_cleaning

    def _start_groups(self) -> None:
        settings = self.settings
        self.groups = GroupService(
            self.replicas,
            GroupSettings(
                min_session_timeout_ms=settings.group_min_session_timeout_ms,
                max_session_timeout_ms=settings.group_max_session_timeout_ms,
                initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
                max_size=settings.group_max_size,
                max_member_bytes=settings.group_max_member_metadata_bytes,
                max_members_bytes=settings.group_max_metadata_bytes,
                offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
                offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
                offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
                commit_timeout_ms=settings.offsets_commit_timeout_ms,
            ),
            self.random,
            self.clock,
            self.call_later,
        )
        self._closers.append(self.groups.close)

    def _start_upkeep(self) -> None:
        settings, logs = self.settings, self.replicas.logs
        upkeep = Upkeep(self.call_later)
        self._closers.append(upkeep.close)
        now_ms = self.clock.now_ms
        upkeep.every("retention", settings.log_retention_check_interval_ms, self._retain)
        upkeep.every("removal", _REMOVAL_MS, lambda: logs.removal_tick(now_ms()))
        upkeep.every("flush", _FLUSH_TICK_MS, lambda: logs.flush_tick(now_ms()))
        upkeep.every("background flush", _FLUSH_TICK_MS, lambda: logs.background_flush_tick(now_ms()))
        upkeep.every("checkpoint", _CHECKPOINT_MS, logs.checkpoint_tick)
        upkeep.every("partitions without room", _RETRY_MS, lambda: self.roles.retry(self.cluster.image))
        upkeep.every("moves between data folders", _MOVES_MS, lambda: logs.moves.tick(now_ms()))
        upkeep.every(
            "producer expiry",
            settings.producer_id_expiration_check_interval_ms,
            lambda: logs.producer_expiry_tick(now_ms()),
        )
        if self._clustering is not None:
            self._clustering.start_upkeep(upkeep)
        if settings.log_cleaner_enable:
            upkeep.every("cleaner", settings.log_cleaner_backoff_ms, lambda: self.cleaner.tick(now_ms()))

    def _folder_failed(self, path: str, error: LogFailed) -> None:
        """Others shall lead what is in it: in a cluster the broker withdraws, and waits for whoever looks after it."""
        if self._clustering is not None and self.is_ready:
            self.is_ready = False
            self._status = "degraded"
            self.spawn(self._clustering.withdraw(f"data folder {path} failed: {error.reason}"), lambda _: None)

    def _retain(self) -> None:
        self.replicas.logs.retention_tick(self.clock.now_ms(), self.cleaner.is_cleaning)
        self.sessions.disturb()  # logs may begin later now

    async def _start_http(self) -> None:
        self.metrics.read_logs_from(self._log_figures)
        self.metrics.read_network_from(self._network_figures)
        self.metrics.partitions.follow(lambda: self._count(lambda: self.replicas.logs.logs()))
        self.metrics.leaders.follow(lambda: self._count(self.replicas.led))
        figures = self._cluster_figures
        self.metrics.under_replicated_partitions.follow(lambda: figures(lambda each: each.under_replicated()))
        self.metrics.under_min_isr_partitions.follow(lambda: self._count(self._under_min_isr))
        self.metrics.active_controller.follow(lambda: figures(lambda each: each.is_controller()))
        self.metrics.offline_partitions.follow(lambda: figures(lambda each: each.offline_partitions()))
        self.metrics.replica_max_lag.follow(lambda: figures(lambda each: each.max_lag()))
        # Of one, too, that has left its cluster for that reason.
        self.metrics.offline_log_directories.follow(
            lambda: len(self.replicas.logs.offline) if hasattr(self, "replicas") else None
        )
        self.metrics.read_groups_from(lambda: self.groups.count_by_state() if self.is_ready else {})
        self.metrics.read_lag_from(lambda: self.groups.committed() if self.is_ready else (), self._end_for_readers)
        http = HttpServer(
            {"/metrics": metrics_route(self.metrics.registry.render), "/health": health_route(self.health)},
            hosts=self._http_hosts(),
        )
        self.http_port = await http.listen(self._http_host, self.http_port or 0)
        self._closers.append(http.close)

    def _http_hosts(self) -> set[str] | None:
        """The names by which HTTP requests may call this broker; None is any."""
        if "*" in self.settings.penstock_http_hosts:
            return None
        names = {self.settings.host_name, self.settings.host_name.partition(".")[0], self._http_host}
        return names | set(self.settings.penstock_http_hosts) | {each.host for each in self.advertised}

    async def stop(self) -> bool:
        """Answer what is owed, make everything durable, leave the mark of a clean stop; whether that was possible."""
        self._status = "stopping"
        if self._clustering is not None and self.is_ready:
            await self._clustering.leave()
            # Requests that wait for replicas would hold up the stop: those brokers may be stopping, too.
            self._closers.append(self.call_later(_RESIGN_S, self.replicas.close).cancel)
        self.is_ready = False
        for task in tuple(self._tasks):
            task.cancel()
        clean = await self._close_all()
        if clean and self._clustering is not None:
            self._clustering.note_good_end()
        logger.info("broker %d stopped%s", self.node_id, "" if clean else ", but not cleanly")
        return clean

    async def _close_all(self) -> bool:
        # Sockets first, whatever was started after them: nobody may ask while the rest goes away.
        closers = list(reversed(self._closers))
        self._closers = []
        if hasattr(self, "server"):
            await self.server.close(_STOP_TIMEOUT_MS)
        clean = True
        for close in closers:
            try:
                outcome = close()
                if asyncio.iscoroutine(outcome):
                    await outcome
                clean = clean and outcome is not False  # the data folders say whether they could leave their mark
            except Exception:
                logger.exception("broker %d: a part did not stop cleanly", self.node_id)
                clean = False
        return clean

    # --- what handlers use

    @property
    def membership_or_none(self) -> Membership | None:
        """The broker's place in a cluster; None if it stands alone."""
        return None if self._clustering is None else self._clustering.membership

    @property
    def membership(self) -> Membership:
        """Of a broker that does not stand alone."""
        if self._clustering is None:
            raise RuntimeError("this broker stands alone")
        return self._clustering.membership

    def live_brokers(self, image: ClusterImage | None = None) -> list[Node]:
        """Those of an image, or of the current one."""
        return [
            Node(broker.broker_id, broker.endpoints[0].host, broker.endpoints[0].port, broker.rack)
            for broker in (image or self.cluster.image).brokers.values()
        ]

    def topic_figures(self, topic: str) -> TopicFigures:
        """The counters of a topic that exists."""
        figures = self._figures.get(topic)
        if figures is None:
            figures = self._figures[topic] = TopicFigures(self.metrics.topic(topic))
        return figures

    def figures_of(self, topic: str) -> TopicFigures | None:
        """The counters of a topic that a client names; None if there is no such topic."""
        return self.topic_figures(topic) if topic in self.cluster.image.topics else None

    def count_error(self, api_key: int, code: int) -> None:
        """An answer carries an error."""
        self.metrics.api(ApiKey(api_key)).count_error(code)

    def observe(self, api_key: int, seconds: float) -> None:
        """A request was answered."""
        api = self._apis.get(api_key)
        if api is None:
            api = self._apis[api_key] = self.metrics.api(ApiKey(api_key))
        api.requests.add()
        api.duration_seconds.observe(seconds)

    def spawn(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Run what must wait for the metadata beside the handlers; `on_error` answers whoever asked if it fails."""

        async def run() -> None:
            try:
                await work
            except (ClusterError, LinkLost) as error:
                # The controller is elsewhere, or stops: the answer says so, and clients ask again.
                logger.info("a request was rejected: %s", error)
                on_error(error)
            except Exception as error:
                logger.exception("a request could not be served")
                on_error(error)

        task = self.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first turn has not begun the work: nobody else would end it.
        task.add_done_callback(lambda _: work.close())

    async def create_automatically(self, names: list[str]) -> None:
        wanted = []
        for name in names:
            if name == OFFSETS_TOPIC:
                await self.create_offsets_topic()
            else:
                wanted.append(with_preset(self.settings, NewTopic(name)))
        if wanted and self._clustering is not None:
            await self._clustering.membership.let_create(wanted)
        elif wanted:
            await self.cluster.create_topics(wanted)

    async def create_offsets_topic(self) -> None:
        """The topic of committed offsets, made when the first group is looked for."""
        settings = self.settings
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }
        factor = settings.offsets_topic_replication_factor
        if self._clustering is None:
            factor = 1
            # Whatever the broker demands of its topics: groups could store nothing otherwise.
            configs[MIN_INSYNC] = "1"
        elif factor > len(self.cluster.image.brokers):
            # Made with fewer it would have fewer for good, because brokers start one after the other.
            raise TooFewBrokers(OFFSETS_TOPIC, factor, len(self.cluster.image.brokers))
        topic = NewTopic(OFFSETS_TOPIC, settings.offsets_topic_num_partitions, factor, configs=configs)
        if self._clustering is not None:
            await self._clustering.membership.let_create([topic])
            return
        outcome = (await self.cluster.create_topics([topic]))[0]
        if outcome.refusal is not None and OFFSETS_TOPIC not in self.cluster.image.topics:
            raise outcome.refusal

    def health(self) -> Health:
        reasons: tuple[str, ...] = ()
        status: Any = self._status
        if self.is_ready or self._status == "degraded":
            reasons = tuple(self._ailments())
            status = "degraded" if reasons else "ok"
        loading = self._loading if self._status == "starting" else None
        uptime_s = (self.clock.monotonic_ms() - self._started_ms) / 1000
        progress = None if loading is None else {"logs_open": loading.done, "logs": loading.total}
        return Health(status, self.node_id, __version__, round(uptime_s, 1), reasons, progress)

    def _ailments(self) -> Iterator[str]:
        for path, error in self.replicas.logs.offline.items():
            yield f"data folder {path} is offline: {error.reason}"
        unmade = self.replicas.unmade
        if unmade:
            (topic, index), reason = next(iter(unmade.items()))
            yield f"{len(unmade)} partitions cannot be created, {topic}-{index} among them: {reason}"

    # --- following the image

    def topic_settings_of(self, topic: str) -> TopicSettings:
        return self.settings_in(self.cluster.image, topic)

    def settings_in(self, image: ClusterImage, topic: str) -> TopicSettings:
        """A topic's settings as an image has them; one object for all topics that set the same."""
        own = image.topic_config(topic)
        key = tuple(sorted(own.items()))
        settings = self._topic_settings.get(key)
        if settings is None:
            if len(self._topic_settings) >= _SETTINGS_KEPT:
                self._topic_settings.clear()
            settings = self._topic_settings[key] = topic_settings(self.settings, own)
        return settings if self._clustering is None else self._clustering.bound(settings, image, topic)

    def log_settings_of(self, topic: str) -> LogSettings:
        return self.topic_settings_of(topic).log

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        change = diff(old, new)
        configured = set(change.topic_configs_changed)
        if change.broker_configs_changed:
            self._apply_broker_configs(new)
            configured |= set(new.topics)  # what a topic does not set for itself comes from the broker
        # Before the roles: what an ISR means depends on how many must be in it.
        for name in sorted(configured):
            if name in new.topics and name not in change.topics_added:
                self.replicas.update_settings(name, self.settings_in(new, name))
        self.roles.apply(old, new)
        for name in change.topics_removed:
            self.metrics.drop_topic(name)
            self._figures.pop(name, None)

    async def _until_committed(self) -> None:
        """Wait until what this broker alone has to vouch for is durable, so that nobody finds an end that goes back."""
        settled = self.loop.create_future()
        self.replicas.when_vouched_for(self.replicas.led(), lambda: settled.set_result(None))
        await settled

    def _apply_broker_configs(self, image: ClusterImage) -> None:
        """The settings given at the start, and over them those changed since: for all brokers, then for this one."""
        settings = self._given
        for name, cluster_wide in (("<default>", True), (str(self.node_id), False)):
            changes = image.broker_config(name)
            if not changes:
                continue
            try:
                settings = settings.with_changes(dict(changes), cluster_wide=cluster_wide)
            except InvalidSettings as error:
                logger.error("stored settings of broker %s are not in force: %s", name, error)
        self.settings = settings.with_broker_id(self.node_id)
        self._topic_settings.clear()
        if self._clustering is not None:
            self._clustering.set_rates(self.settings)

    # --- figures

    def _under_min_isr(self) -> Iterator[object]:
        return (each for each in self.replicas.led() if each.insync_replicas < each.min_insync_replicas)

    def _count(self, things: Callable[[], Iterable[object]]) -> int | None:
        return sum(1 for _ in things()) if self.is_ready else None

    def _cluster_figures(self, ask: Callable[[Clustering], int]) -> int | None:
        if not self.is_ready:
            return None
        return 0 if self._clustering is None else ask(self._clustering)

    def _log_figures(self) -> Iterator[LogFigures]:
        if not self.is_ready:
            return
        for hosted in self.replicas.logs.logs():
            log = hosted.log
            yield LogFigures(
                hosted.topic, hosted.partition, log.size, log.segment_count, log.log_start_offset, log.log_end_offset
            )

    def _end_for_readers(self, topic: str, index: int) -> int | None:
        """The end of a partition that has a replica here; a follower knows it as of its last fetch."""
        partition = self.replicas.get(topic, index)
        return None if partition is None else partition.log.high_watermark

    def _network_figures(self) -> NetworkFigures:
        counters = self.server.counters
        return NetworkFigures(
            counters.connections, counters.accepted, counters.rejected, counters.bytes_in, counters.bytes_out
        )


def _limits(settings: BrokerSettings) -> Limits:
    return Limits(
        max_frame_bytes=settings.socket_request_max_bytes,
        max_request_bytes=settings.queued_max_request_bytes if settings.queued_max_request_bytes > 0 else UNBOUNDED,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_ip,
        idle_ms=max(0, settings.connections_max_idle_ms),
        busy_poll_us=settings.socket_busy_poll_us,
        # Kafka's default of 50 makes a crowd that comes at once wait for a second: a queue costs nothing.
        backlog=max(settings.socket_listen_backlog_size, 1024),
    )

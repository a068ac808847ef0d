"""A small vocabulary for stories about groups: a shard, a manual clock, and a log that keeps what is written.

Requests and responses go through the codecs of their version, so that a story also shows that they can be sent. The log
takes what is written at once, unless the story holds it up (`hold_writes`) and decides later what becomes of it.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.groups.group import GroupSettings
from penstock.coordination.responses import Outcome, RequestContext
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.runtime.randomness import SeededRandom
from penstock.wire.codec import codec_for
from penstock.wire.protocol import ApiKey, ErrorCode, error_code, find_api, request_codec, response_codec
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.wire.schemas.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.wire.types import Message

START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
HOUR_MS = 3_600_000

AT_ONCE = GroupSettings(initial_rebalance_delay_ms=0)

_HANDLERS = {
    ApiKey.JOIN_GROUP: "handle_join_group",
    ApiKey.SYNC_GROUP: "handle_sync_group",
    ApiKey.HEARTBEAT: "handle_heartbeat",
    ApiKey.LEAVE_GROUP: "handle_leave_group",
    ApiKey.OFFSET_COMMIT: "handle_offset_commit",
    ApiKey.TXN_OFFSET_COMMIT: "handle_txn_offset_commit",
    ApiKey.OFFSET_FETCH: "handle_offset_fetch",
    ApiKey.OFFSET_DELETE: "handle_offset_delete",
    ApiKey.DELETE_GROUPS: "handle_delete_groups",
    ApiKey.DESCRIBE_GROUPS: "handle_describe_groups",
}


def subscription(*topics: str) -> bytes:
    body = codec_for(ConsumerProtocolSubscription, 0).encode(ConsumerProtocolSubscription(topics=list(topics)))
    return struct.pack(">h", 0) + body


def protocols(*names: str, topics: tuple[str, ...] = ("clicks",)) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name=name, metadata=subscription(*topics)) for name in names or ("range",)]


class Story:
    """One coordinator, from loading to the end of the story."""

    def __init__(
        self,
        settings: GroupSettings = AT_ONCE,
        log: list[tuple[CoordinatorRecord, int]] | None = None,
        now_ms: int = START_MS,
    ) -> None:
        self.now_ms = now_ms
        self.log: list[tuple[CoordinatorRecord, int]] = [] if log is None else list(log)
        self.shard = GroupCoordinatorShard(settings, SeededRandom(len(self.log)))
        for record, producer_id in self.log:
            self.shard.replay(record.key, record.value, producer_id)
        self.shard.loaded(now_ms)
        self.settings = settings
        self.hold_writes = False
        self.held: deque[Outcome] = deque()
        self.tokens = 0
        self.versions: dict[int, tuple[ApiKey, int]] = {}
        self.replies: dict[int, Any] = {}

    # Sending and receiving

    def send(self, api: ApiKey, request: Message, version: int | None = None, client: str = "app") -> int:
        """Returns a token; `replies[token]` is the response, once there is one."""
        version = find_api(api).versions.highest if version is None else version
        received, _ = request_codec(api, version).decode(request_codec(api, version).encode(request))
        self.tokens += 1
        self.versions[self.tokens] = (api, version)
        context = RequestContext(self.tokens, version, client, "/10.0.0.7")
        self.take(getattr(self.shard, _HANDLERS[api])(received, context, self.now_ms))
        return self.tokens

    def ask(self, api: ApiKey, request: Message, version: int | None = None, client: str = "app") -> Any:
        """For requests that are answered before anything else happens."""
        return self.replies[self.send(api, request, version, client)]

    def take(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            assert isinstance(reply.token, int)
            assert reply.token not in self.replies, "a request was answered twice"
            codec = response_codec(*self.versions[reply.token])
            self.replies[reply.token] = codec.decode(codec.encode(reply.message))[0]
        assert (outcome.write_id is None) == (not outcome.records)
        if outcome.write_id is not None:
            self.held.append(outcome)
            if not self.hold_writes:
                self.write_next()

    def write_next(self) -> None:
        outcome = self.held.popleft()
        producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
        self.log.extend((record, producer_id) for record in outcome.records)
        assert outcome.write_id is not None
        self.take(self.shard.appended(outcome.write_id, self.now_ms))

    def fail_next(self, code: ErrorCode) -> None:
        outcome = self.held.popleft()
        assert outcome.write_id is not None
        self.take(self.shard.append_failed(outcome.write_id, code, self.now_ms))

    def pass_ms(self, ms: int) -> None:
        """Time passes; the shard is called whenever it asked to be."""
        end_ms = self.now_ms + ms
        while self.shard.next_deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.shard.next_deadline_ms)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    def restart(self, settings: GroupSettings | None = None) -> Story:
        """The same partition on another coordinator."""
        return Story(settings or self.settings, self.log, self.now_ms)

    @property
    def unanswered(self) -> set[int]:
        return set(self.versions) - set(self.replies)

    # Members

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        offers: list[JoinGroupRequestProtocol] | None = None,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        kind: str = "consumer",
        version: int = 9,
        client: str = "app",
    ) -> int:
        """Send a JoinGroup; a member that needs an id joins again with it."""
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms if version >= 1 else -1,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=protocols() if offers is None else offers,
        )
        token = self.send(ApiKey.JOIN_GROUP, request, version, client)
        answer = self.replies.get(token)
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = answer.member_id
            token = self.send(ApiKey.JOIN_GROUP, request, version, client)
        return token

    def joined(self, token: int) -> JoinGroupResponse:
        answer: JoinGroupResponse = self.replies[token]
        assert answer.error_code == ErrorCode.NONE, error_code(answer.error_code).name
        return answer

    def sync(
        self,
        answer: JoinGroupResponse,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            group_instance_id=instance,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                for member_id, share in (assignments or {}).items()
            ],
        )
        return self.send(ApiKey.SYNC_GROUP, request)

    def heartbeat(self, answer: JoinGroupResponse, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            group_instance_id=instance,
        )
        return error_code(self.ask(ApiKey.HEARTBEAT, request).error_code)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        request = LeaveGroupRequest(
            group_id=group,
            members=[MemberIdentity(member_id=each, group_instance_id=instance) for each, instance in members],
        )
        answer = self.ask(ApiKey.LEAVE_GROUP, request)
        assert answer.error_code == ErrorCode.NONE
        return [error_code(member.error_code) for member in answer.members]

    def stable(self, count: int = 1, *, group: str = "g", **how: Any) -> list[JoinGroupResponse]:
        """A group of this many members in a stable generation; the first one leads, each owns b"share"."""
        tokens = [self.join(group=group, **how)]
        for _ in range(count - 1):
            tokens.append(self.join(group=group, **how))
            # Members that were answered before join again, so that all are in one generation.
            for place, token in enumerate(tokens[:-1]):
                tokens[place] = self.join(self.replies[token].member_id, group=group, **how)
        answers = [self.joined(token) for token in tokens]
        self.share_out(answers, group=group)
        return answers

    def share_out(self, answers: list[JoinGroupResponse], *, group: str = "g") -> None:
        leader = next(answer for answer in answers if answer.leader == answer.member_id)
        shares = {answer.member_id: b"share of " + answer.member_id.encode() for answer in answers}
        followers = [self.sync(answer, group=group) for answer in answers if answer is not leader]
        tokens = [self.sync(leader, shares, group=group), *followers]
        for token in tokens:
            assert self.replies[token].error_code == ErrorCode.NONE

    def state(self, group: str = "g") -> str:
        answer = self.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]), 5)
        state: str = answer.groups[0].group_state
        return state

    # Offsets

    def send_commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        by: JoinGroupResponse | None = None,
        group: str = "g",
        instance: str | None = None,
        version: int = 9,
        metadata: str | None = "",
        retention_ms: int = -1,
    ) -> int:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1 if by is None else by.generation_id,
            member_id="" if by is None else by.member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        return self.send(ApiKey.OFFSET_COMMIT, request, version)

    def commit(self, offsets: dict[tuple[str, int], int], **how: Any) -> ErrorCode:
        """The one error code of a commit that is answered at once."""
        answer = self.replies[self.send_commit(offsets, **how)]
        (code,) = {partition.error_code for topic in answer.topics for partition in topic.partitions}
        return error_code(code)

    def fetched(
        self, topic: str = "clicks", partition: int = 0, *, group: str = "g", require_stable: bool = False
    ) -> int | ErrorCode:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
                )
            ],
            require_stable=require_stable,
        )
        found = self.ask(ApiKey.OFFSET_FETCH, request, 9).groups[0].topics[0].partitions[0]
        offset: int = found.committed_offset
        return error_code(found.error_code) if found.error_code else offset

"""Access control lists: Kafka's model of who may do what. Pure.

An ACL allows or denies an operation on a resource to a principal from a host. A resource pattern is a name, a prefix of
names, or `*` for every name. The rules, in order:

1. A super user may do everything.
2. If the stored ACLs cannot be read, all others are denied everything.
3. A DENY that matches wins over any ALLOW.
4. An ALLOW that matches permits. READ, WRITE, DELETE and ALTER also permit DESCRIBE; ALTER_CONFIGS also permits
   DESCRIBE_CONFIGS. A DENY denies its own operation only.
5. Without any ACL for the resource, for any principal, `allow.everyone.if.no.acl.found` decides. Otherwise: denied.

`Acls` is the immutable collection. `AclAuthorizer` applies the rules to sessions and remembers its decisions until it
is given another collection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

from penstock.security.principal import Principal, Session

WILDCARD: Final = "*"
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
NO_OPERATIONS: Final = -(2**31)
"""What responses carry if the authorized operations were not requested."""

AUTHORIZERS: Final = (
    "penstock",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""Values of authorizer.class.name. They all mean this one."""

_MAX_DECISIONS: Final = 50_000
_Member = TypeVar("_Member", bound=IntEnum)


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


RESOURCE_TYPES: Final = tuple(each for each in ResourceType if each > ResourceType.ANY)
STORED_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)

_O = Operation
OPERATIONS_OF: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that exist on a resource, apart from ALL."""

_PERMITTED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, _O.ALL}) for operation in Operation
} | {
    _O.DESCRIBE: frozenset({_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER, _O.ALL}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.ALL}),
}


def title_of(member: IntEnum) -> str:
    """The name as Kafka stores it: `DescribeConfigs`, `TransactionalId`."""
    return "".join(word.capitalize() for word in member.name.split("_"))


def member_named(kind: type[_Member], text: str) -> _Member:
    """By any spelling of its name: `DescribeConfigs`, `describe_configs`, `DESCRIBE-CONFIGS`. ValueError."""
    wanted = text.strip().replace("_", "").replace("-", "").upper()
    for member in kind:
        if member.value and member.name.replace("_", "") == wanted:
            return member
    known = ", ".join(title_of(member) for member in kind if member.value)
    raise ValueError(f"{text[:60]!r} is not one of {known}")


def member_of(kind: type[_Member], code: int) -> _Member:
    """By its number in the protocol; UNKNOWN for numbers of later versions."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)


# --- ACLs and filters


class ResourcePattern(NamedTuple):
    type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def covers(self, name: str) -> bool:
        """Whether the pattern applies to the resource of this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def __str__(self) -> str:
        prefixed = " (prefix)" if self.pattern_type is PatternType.PREFIXED else ""
        return f"{title_of(self.type)} {self.name!r}{prefixed}"


CLUSTER: Final = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)


class AclEntry(NamedTuple):
    """Who, from where, may or may not do what. `host` is an IP address or `*`."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    """An entry and the resources that it is about."""

    pattern: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        entry = self.entry
        where = "any host" if entry.host == WILDCARD else f"host {entry.host}"
        return (
            f"{title_of(entry.permission)} {title_of(entry.operation)} on {self.pattern} to {entry.principal} "
            f"from {where}"
        )


def problem_of(binding: AclBinding) -> str | None:
    """Why an ACL cannot be created, None if it can."""
    pattern, entry = binding
    if pattern.type not in RESOURCE_TYPES:
        return f"resource type {pattern.type.name} is not a type of resource"
    if pattern.pattern_type not in STORED_PATTERNS:
        return f"pattern type {pattern.pattern_type.name} is for filters; an ACL is LITERAL or PREFIXED"
    if not pattern.name:
        return "the resource name is empty; use * for all resources"
    if pattern.type is ResourceType.CLUSTER and pattern.name not in (CLUSTER_NAME, WILDCARD):
        return f"{pattern.name[:60]!r} is not the name of the cluster resource, which is {CLUSTER_NAME}"
    if entry.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"operation {entry.operation.name} is not an operation"
    if entry.permission not in (Permission.ALLOW, Permission.DENY):
        return f"permission type {entry.permission.name} is neither ALLOW nor DENY"
    kind, _, name = entry.principal.partition(":")
    if not kind or not name:
        return f"{entry.principal[:60]!r} is not a principal; write Type:name, for example User:alice"
    if not entry.host:
        return "the host is empty; use * for all hosts"
    return None


class AclFilter(NamedTuple):
    """Selects ACLs; None and ANY match everything.

    With the pattern type MATCH, the filter selects the patterns that cover the resource of that name; with another
    one, those of that very name.
    """

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    @property
    def problem(self) -> str | None:
        """Why it selects nothing sensible, None if it does."""
        for member in (self.type, self.pattern_type, self.operation, self.permission):
            if member.value == 0:
                return f"the filter has an unknown {type(member).__name__}"
        return None

    def covers(self, pattern: ResourcePattern) -> bool:
        if self.type not in (ResourceType.ANY, pattern.type):
            return False
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or pattern.covers(self.name)
        if self.pattern_type not in (PatternType.ANY, pattern.pattern_type):
            return False
        return self.name is None or self.name == pattern.name

    def selects(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


# --- the collection

Entries = frozenset[AclEntry]
_NO_ENTRIES: Final[Entries] = frozenset()


class Acls:
    """All ACLs, by pattern. Immutable: a change gives a new collection.

    With a `problem`, the stored ACLs could not be read, and only super users may be served: an ACL that is
    missing here might be the one that denies.
    """

    __slots__ = ("_by_pattern", "_by_principal", "_prefix_lengths", "problem")

    def __init__(self, by_pattern: Mapping[ResourcePattern, Entries] | None = None, problem: str | None = None) -> None:
        self._by_pattern: Mapping[ResourcePattern, Entries] = by_pattern or {}
        self.problem = problem
        lengths: dict[ResourceType, set[int]] = {}
        for pattern in self._by_pattern:
            if pattern.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(pattern.type, set()).add(len(pattern.name))
        self._prefix_lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}
        # Made when a pattern is first looked at: thousands of principals may share one.
        self._by_principal: dict[ResourcePattern, dict[str, list[AclEntry]]] = {}

    @classmethod
    def of(cls, bindings: Iterable[AclBinding]) -> Acls:
        found: dict[ResourcePattern, set[AclEntry]] = {}
        for pattern, entry in bindings:
            found.setdefault(pattern, set()).add(entry)
        return cls({pattern: frozenset(entries) for pattern, entries in found.items()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Acls):
            return NotImplemented
        return self is other or (self._by_pattern == other._by_pattern and self.problem == other.problem)

    def __hash__(self) -> int:
        return hash((len(self._by_pattern), self.problem))

    def __len__(self) -> int:
        return sum(map(len, self._by_pattern.values()))

    def __repr__(self) -> str:
        return f"<{len(self)} ACLs>" if self.problem is None else f"<unreadable ACLs: {self.problem}>"

    @property
    def by_pattern(self) -> Mapping[ResourcePattern, Entries]:
        return self._by_pattern

    def entries(self, pattern: ResourcePattern) -> Entries:
        return self._by_pattern.get(pattern, _NO_ENTRIES)

    def with_entries(self, changes: Mapping[ResourcePattern, Collection[AclEntry]], problem: str | None = None) -> Acls:
        """With these entries for these patterns; a pattern without entries is gone."""
        after = {**self._by_pattern, **{pattern: frozenset(entries) for pattern, entries in changes.items()}}
        return Acls({pattern: entries for pattern, entries in after.items() if entries}, problem)

    def select(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """The ACLs that a filter selects, in a stable order."""
        kind, name, pattern_type, *_ = wanted
        candidates: Iterable[ResourcePattern] = self._by_pattern
        if name is not None and kind is not ResourceType.ANY:
            # Few ACLs are about one name: the others need not be looked at.
            if pattern_type is PatternType.MATCH:
                candidates = self.patterns_for(kind, name)
            else:
                both = (ResourcePattern(kind, name, each) for each in STORED_PATTERNS)
                candidates = (pattern for pattern in both if pattern in self._by_pattern)
        for pattern in sorted(filter(wanted.covers, candidates)):
            for entry in sorted(filter(wanted.selects, self._by_pattern[pattern])):
                yield AclBinding(pattern, entry)

    def patterns_for(self, kind: ResourceType, name: str) -> Iterator[ResourcePattern]:
        """The patterns with ACLs that cover a resource: the name, `*`, and prefixes from short to long."""
        known = self._by_pattern
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            pattern = ResourcePattern(kind, literal)
            if pattern in known:
                yield pattern
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                return
            pattern = ResourcePattern(kind, name[:length], PatternType.PREFIXED)
            if pattern in known:
                yield pattern

    def entries_for(self, pattern: ResourcePattern, principals: Iterable[str]) -> Iterator[AclEntry]:
        """The entries of a pattern that are about any of these principals."""
        index = self._by_principal.get(pattern)
        if index is None:
            index = self._by_principal[pattern] = {}
            for entry in self._by_pattern[pattern]:
                index.setdefault(entry.principal, []).append(entry)
        for principal in principals:
            yield from index.get(principal, ())


NO_ACLS: Final = Acls()


# --- decisions


class Reason(Enum):
    BROKER = "the request comes from a broker of this cluster"
    SUPER_USER = "super.users names the principal"
    UNREADABLE = "the stored ACLs cannot be read, so only super users are served"
    DENIED_BY_ACL = "an ACL denies it; DENY wins over ALLOW"
    ALLOWED_BY_ACL = "an ACL allows it"
    ALLOWED_WITHOUT_ACLS = "the resource has no ACLs, and allow.everyone.if.no.acl.found=true"
    NO_ACLS = "the resource has no ACLs"
    NO_MATCHING_ACL = "the resource has ACLs, but none of them allows it"


_ALLOWING: Final = frozenset({Reason.BROKER, Reason.SUPER_USER, Reason.ALLOWED_BY_ACL, Reason.ALLOWED_WITHOUT_ACLS})


class Verdict(NamedTuple):
    """Why something is allowed or denied, and the ACL that decided, if one did."""

    reason: Reason
    acl: AclBinding | None = None

    @property
    def allowed(self) -> bool:
        return self.reason in _ALLOWING


class Explanation(NamedTuple):
    """A verdict for people: which rule or ACL decided, and what would allow a request that is denied."""

    verdict: Verdict
    detail: str
    remedy: str | None = None
    needed: AclBinding | None = None
    """The ACL that would allow it."""


_Who = tuple[Principal, frozenset[Principal], str]
_What = tuple[Operation, ResourceType, str]


class AclAuthorizer:
    """The rules, for the super users and the default of one broker.

    Decisions are remembered by principals, host, operation and resource, at most `_MAX_DECISIONS` at a time.
    """

    def __init__(self, super_users: Collection[Principal] = (), *, allow_without_acls: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self.allow_without_acls = allow_without_acls
        self.acls = NO_ACLS
        """What is applied; `use` sets it."""
        self._decisions: dict[_Who, dict[_What, bool]] = {}
        self._any: dict[tuple[Principal, frozenset[Principal], str, Operation, ResourceType], bool] = {}
        self._count = 0

    def use(self, acls: Acls) -> None:
        """Apply another collection from now on."""
        if acls is not self.acls:
            self.acls = acls
            self._any = {}
            self._forget()

    def _forget(self) -> None:
        self._decisions = {}
        self._count = 0

    def authorize(self, session: Session, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a session may do this to the resource."""
        if session.is_broker:
            return True
        who = (session.principal, session.groups, session.host)
        known = self._decisions.get(who)
        if known is None:
            known = self._decisions[who] = {}
        what = (operation, kind, name)
        allowed = known.get(what)
        if allowed is None:
            if self._count >= _MAX_DECISIONS:
                self._forget()
                known = self._decisions[who] = {}
            self._count += 1
            allowed = known[what] = self.judge(session, operation, kind, name).allowed
        return allowed

    def judge(self, session: Session, operation: Operation, kind: ResourceType, name: str) -> Verdict:
        """The verdict of the rules, without a look at earlier ones."""
        special = self._special(session)
        if special is not None:
            return Verdict(special)
        principals = _names_of(session)
        permitted_by = _PERMITTED_BY[operation]
        acls = self.acls
        allow: AclBinding | None = None
        has_acls = False
        for pattern in acls.patterns_for(kind, name):
            has_acls = True
            for entry in acls.entries_for(pattern, principals):
                if entry.host not in (WILDCARD, session.host):
                    continue
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return Verdict(Reason.DENIED_BY_ACL, AclBinding(pattern, entry))
                elif allow is None and entry.operation in permitted_by:
                    allow = AclBinding(pattern, entry)
        if allow is not None:
            return Verdict(Reason.ALLOWED_BY_ACL, allow)
        if has_acls:
            return Verdict(Reason.NO_MATCHING_ACL)
        return Verdict(Reason.ALLOWED_WITHOUT_ACLS if self.allow_without_acls else Reason.NO_ACLS)

    def authorize_any(self, session: Session, operation: Operation, kind: ResourceType) -> bool:
        """Whether a session may do this to at least one resource of a type, which need not exist."""
        special = self._special(session)
        if special is not None:
            return special in _ALLOWING
        key = (session.principal, session.groups, session.host, operation, kind)
        allowed = self._any.get(key)
        if allowed is None:
            if len(self._any) >= _MAX_DECISIONS:
                self._any = {}
            allowed = self._any[key] = self._judge_any(session, operation, kind)
        return allowed

    def _judge_any(self, session: Session, operation: Operation, kind: ResourceType) -> bool:
        principals = _names_of(session)
        everything = ResourcePattern(kind, WILDCARD)
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        for pattern in self.acls.by_pattern:
            if pattern.type is not kind:
                continue
            for entry in self.acls.entries_for(pattern, principals):
                if entry.host in (WILDCARD, session.host) and entry.operation in (operation, Operation.ALL):
                    if entry.permission is Permission.DENY:
                        denied.add(pattern)
                    else:
                        allowed.append(pattern)
        if everything in denied:
            return False
        if everything in allowed or (self.allow_without_acls and everything not in self.acls.by_pattern):
            return True  # there is always a name that no other ACL is about
        return any(not _is_denied(pattern, denied) for pattern in allowed)

    def authorized_operations(self, session: Session, kind: ResourceType, name: str) -> int:
        """The operations that a session may do to a resource, as the bit field of responses."""
        return bits_of(each for each in OPERATIONS_OF[kind] if self.authorize(session, each, kind, name))

    def explain(self, session: Session, operation: Operation, kind: ResourceType, name: str) -> Explanation:
        """Which rule or ACL decides, and which ACL would be needed."""
        verdict = self.judge(session, operation, kind, name)
        if verdict.allowed:
            return Explanation(verdict, verdict.reason.value if verdict.acl is None else str(verdict.acl))
        if verdict.acl is not None:
            return Explanation(verdict, str(verdict.acl), f"remove the ACL: {verdict.acl}")
        if verdict.reason is Reason.UNREADABLE:
            detail = f"{verdict.reason.value}: {self.acls.problem}"
            return Explanation(verdict, detail, "repair or delete the node in the metadata tree")
        entry = AclEntry(str(session.principal), WILDCARD, operation, Permission.ALLOW)
        needed = AclBinding(ResourcePattern(kind, name), entry)
        return Explanation(verdict, verdict.reason.value, f"add the ACL: {needed}", needed)

    def _special(self, session: Session) -> Reason | None:
        """The rules that no ACL can change."""
        if session.is_broker:
            return Reason.BROKER
        if self.super_users and not self.super_users.isdisjoint(session.principals):
            return Reason.SUPER_USER
        return None if self.acls.problem is None else Reason.UNREADABLE


def bits_of(operations: Iterable[Operation]) -> int:
    """Operations as a bit field; bit 8 is DESCRIBE."""
    bits = 0
    for operation in operations:
        bits |= 1 << operation
    return bits


def _names_of(session: Session) -> tuple[str, ...]:
    return (ANY_USER, *map(str, session.principals))


def _is_denied(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Whether everything that a pattern covers is covered by one that is denied."""
    kind, name, _ = pattern
    prefixes = (ResourcePattern(kind, name[:end], PatternType.PREFIXED) for end in range(1, len(name) + 1))
    return pattern in denied or any(prefix in denied for prefix in prefixes)


def parse_super_users(text: str) -> frozenset[Principal]:
    """The principals of `super.users`, separated by semicolons: `User:admin;User:CN=a,OU=b`. ValueError."""
    found = set()
    for part in text.split(";"):
        if not part.strip():
            continue
        kind, _, name = part.strip().partition(":")
        if not kind or not name:
            raise ValueError(f"{part.strip()[:60]!r} is not a principal; write Type:name, for example User:admin")
        found.add(Principal(kind, name))
    return frozenset(found)

"""The settings that Java's consumer and producer have, by name: what may follow `kafka.` in an option.

Rule: a query that moves here from the stock connector brings its settings along. Those that mean something here are
read by `options`; the others are about the inside of the Java clients and change nothing. A name that is in neither
list is a typing mistake.
"""

from __future__ import annotations

from typing import Final

_BOTH: Final = """
    auto.include.jmx.reporter bootstrap.servers client.dns.lookup client.id config.providers
    connections.max.idle.ms enable.metrics.push interceptor.classes metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
_CONSUMER: Final = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported isolation.level
    key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    partition.assignment.strategy session.timeout.ms share.acknowledgement.mode share.acquire.mode
    value.deserializer
"""
_PRODUCER: Final = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys retries transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
    value.serializer
"""

CONSUMER_NAMES: Final = tuple((_BOTH + _CONSUMER).split())
PRODUCER_NAMES: Final = tuple((_BOTH + _PRODUCER).split())

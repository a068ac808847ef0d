'use strict';
// KafkaJS on demand: a question is one line of JSON, so is its answer, until the input ends.
// The packages are found through NODE_PATH.

const fs = require('node:fs');
const readline = require('node:readline');
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs');

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');

// Without native code: what KafkaJS's own documentation names does not build everywhere.
const lz4 = require('lz4js');
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
const zstd = require('@bokuweb/zstd-wasm');
const zstdReady = zstd.init();
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => {
    await zstdReady;
    return Buffer.from(zstd.compress(encoder.buffer, 3));
  },
  decompress: async (buffer) => {
    await zstdReady;
    return Buffer.from(zstd.decompress(buffer));
  },
});

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};
const PATIENCE_MS = 30000;

function kafka(question) {
  const security = question.security ? secured(question.security) : {};
  return new Kafka({
    clientId: 'peer', brokers: question.address.split(','), logLevel: logLevel.NOTHING, ...security,
  });
}

// TLS always; a certificate of one's own and a login if they are named.
function secured({ ca, pem, mechanism, username, password, token, renew_before_ms: reauthenticationThreshold }) {
  const ssl = { ca: [fs.readFileSync(ca)] };
  if (pem) ssl.cert = ssl.key = fs.readFileSync(pem);
  if (!mechanism) return { ssl };
  const login = token ? { oauthBearerProvider: async () => ({ value: token }) } : { username, password };
  const early = reauthenticationThreshold ? { reauthenticationThreshold } : {};
  return { ssl, sasl: { mechanism: mechanism.toLowerCase(), ...login }, ...early };
}

async function withClient(client, use) {
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}

function shown(partition, message) {
  const headers = Object.entries(message.headers || {}).map(([key, value]) => [key, value.toString()]);
  return {
    partition,
    offset: Number(message.offset),
    key: message.key === null ? null : message.key.toString(),
    value: message.value === null ? null : message.value.toString(),
    timestamp_ms: Number(message.timestamp),
    headers,
  };
}

async function produce(question) {
  const producer = kafka(question).producer({
    idempotent: question.idempotent || false,
    allowAutoTopicCreation: true,
  });
  const compression = CODECS[question.codec || 'none'];
  const acks = question.acks === undefined ? -1 : question.acks;
  return withClient(producer, async () => {
    const [response] = await producer.send({ topic: question.topic, messages: question.records, compression, acks });
    return response === undefined ? null : Number(response.baseOffset);
  });
}

// As a member of a group; from an offset of one partition if both are named.
async function consume(question) {
  const consumer = kafka(question).consumer({ groupId: question.group, sessionTimeout: 10000 });
  const records = [];
  return withClient(consumer, async () => {
    await consumer.subscribe({ topics: [question.topic], fromBeginning: true });
    let enough;
    const done = new Promise((resolve, reject) => {
      enough = resolve;
      consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
      setTimeout(() => reject(new Error(`${records.length} records, then no more`)), PATIENCE_MS).unref();
    });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        const from = question.partition === undefined || partition === question.partition;
        if (!from || records.length >= question.count) return;
        records.push(shown(partition, message));
        await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }]);
        if (records.length >= question.count) enough();
      },
    });
    if (question.offset !== undefined)
      consumer.seek({ topic: question.topic, partition: question.partition, offset: String(question.offset) });
    await done;
    return records;
  });
}

const ADMIN = {
  create: (admin, { topic, partitions }) =>
    admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: -1 }] }),
  topics: (admin) => admin.listTopics(),
  describe: async (admin, { topic }) => {
    const response = await admin.fetchTopicMetadata({ topics: [topic] });
    return response.topics[0].partitions.length;
  },
  grow: (admin, { topic, partitions }) =>
    admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] }),
  configure: async (admin, { topic, name, value }) => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name, value }] }] });
    const response = await admin.describeConfigs({ resources: [{ ...resource, configNames: [name] }] });
    return response.resources[0].configEntries[0].configValue;
  },
  offsets: async (admin, { topic }) => {
    const response = await admin.fetchTopicOffsets(topic);
    return Object.fromEntries(response.map((row) => [row.partition, [Number(row.low), Number(row.high)]]));
  },
  times: async (admin, { topic, time_ms: timeMs }) => {
    const response = await admin.fetchTopicOffsetsByTimestamp(topic, timeMs);
    return Object.fromEntries(response.map((row) => [row.partition, Number(row.offset)]));
  },
  'delete-records': async (admin, { topic, partition, before }) => {
    // An admin client that has not yet asked about the topic does not find its leaders.
    await admin.fetchTopicOffsets(topic);
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] });
  },
  groups: async (admin, { group, topic }) => {
    const { groups } = await admin.listGroups();
    const described = await admin.describeGroups([group]);
    const [committed] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    return {
      listed: groups.some((row) => row.groupId === group),
      state: described.groups[0].state,
      committed: Object.fromEntries(committed.partitions.map((row) => [row.partition, Number(row.offset)])),
    };
  },
  'delete-group': (admin, { group }) => admin.deleteGroups([group]),
  delete: (admin, { topic }) => admin.deleteTopics({ topics: [topic] }),
};

// --- transactions: producers that do what the test calls, and one that reads, processes and writes by itself

const producers = {};

function transactional(question) {
  return kafka(question).producer({
    transactionalId: question.id,
    idempotent: true,
    maxInFlightRequests: 1,
    transactionTimeout: question.timeout_ms || 60000,
    allowAutoTopicCreation: true,
  });
}

const TRANSACTIONS = {
  open: async (question) => {
    const producer = transactional(question);
    await producer.connect();
    producers[question.name] = { producer };
  },
  // KafkaJS asks for the producer's id, which fences others, with the first transaction.
  begin: async (question) => {
    const mine = producers[question.name];
    mine.transaction = await mine.producer.transaction();
  },
  send: async (question) => {
    const messages = [{ value: question.value, partition: question.partition }];
    await producers[question.name].transaction.send({ topic: question.topic, messages });
  },
  commit: (question) => producers[question.name].transaction.commit(),
  abort: (question) => producers[question.name].transaction.abort(),
  close: (question) => producers[question.name].producer.disconnect(),
};

async function transact(question) {
  try {
    await TRANSACTIONS[question.about](question);
    return null;
  } catch (error) {
    return error.type || error.name;
  }
}

const copier = { transactions: 0, failures: [], isOver: false };

async function copyUntilItFails(question) {
  const producer = transactional(question);
  const consumer = kafka(question).consumer({ groupId: question.group, sessionTimeout: 10000, readUncommitted: false });
  await producer.connect();
  // The first transaction fences the former producer: its own is over when the offsets are read.
  await (await producer.transaction()).abort();
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [question.source], fromBeginning: true });
    await new Promise((resolve, reject) => {
      const timer = setInterval(() => copier.isOver && resolve(), 50);
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      const failed = (error) => {
        clearInterval(timer);
        reject(error);
      };
      consumer
        .run({
          autoCommit: false,
          eachBatchAutoResolve: false,
          eachBatch: async ({ batch, resolveOffset, heartbeat, isStale, isRunning }) => {
            if (copier.isOver || isStale() || !isRunning() || batch.messages.length === 0) return;
            try {
              await copyBatch(question, producer, batch);
            } catch (error) {
              failed(error);
              return;
            }
            resolveOffset(batch.lastOffset());
            await heartbeat();
          },
        })
        .catch(failed);
    });
  } finally {
    await Promise.allSettled([consumer.disconnect(), producer.disconnect()]);
  }
}

async function copyBatch(question, producer, batch) {
  const transaction = await producer.transaction();
  try {
    const messages = batch.messages.map((message) => ({
      value: `copy of ${message.value}`,
      partition: batch.partition,
    }));
    await transaction.send({ topic: question.target, messages });
    const offset = String(BigInt(batch.lastOffset()) + 1n);
    await transaction.sendOffsets({
      consumerGroupId: question.group,
      topics: [{ topic: question.source, partitions: [{ partition: batch.partition, offset }] }],
    });
    await new Promise((resume) => setTimeout(resume, question.pause_ms || 0));
    await transaction.commit();
    copier.transactions += 1;
  } catch (error) {
    await transaction.abort().catch(() => null);
    throw error;
  }
}

const COPYING = {
  copy: (question) => {
    Object.assign(copier, { transactions: 0, failures: [], isOver: false });
    copier.done = (async () => {
      while (!copier.isOver) await copyUntilItFails(question).catch((error) => copier.failures.push(String(error)));
    })();
    return null;
  },
  copied: () => ({ transactions: copier.transactions, failures: copier.failures }),
  'copy-stop': async () => {
    copier.isOver = true;
    await copier.done;
    return COPYING.copied();
  },
};

async function answer(question) {
  if (question.about === 'produce') return produce(question);
  if (question.about === 'consume') return consume(question);
  if (TRANSACTIONS[question.about]) return transact(question);
  if (COPYING[question.about]) return COPYING[question.about](question);
  return withClient(kafka(question).admin(), (admin) => ADMIN[question.about](admin, question));
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let reply;
    try {
      const said = await answer(JSON.parse(line));
      reply = { answer: said === undefined ? null : said };
    } catch (error) {
      reply = { error: `${error.name} ${error.type || ''} ${error.message}` };
    }
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
  process.exit(0);
}

main();

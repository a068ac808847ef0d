'use strict';
// KafkaJS on demand: a question is one line of JSON, so is its answer, until the input ends.
// The packages are found through NODE_PATH.

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
  return new Kafka({ clientId: 'peer', brokers: [question.address], logLevel: logLevel.NOTHING });
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
    const [told] = await producer.send({ topic: question.topic, messages: question.records, compression, acks });
    return told === undefined ? null : Number(told.baseOffset);
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
    const told = await admin.fetchTopicMetadata({ topics: [topic] });
    return told.topics[0].partitions.length;
  },
  grow: (admin, { topic, partitions }) =>
    admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] }),
  configure: async (admin, { topic, name, value }) => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name, value }] }] });
    const told = await admin.describeConfigs({ resources: [{ ...resource, configNames: [name] }] });
    return told.resources[0].configEntries[0].configValue;
  },
  offsets: async (admin, { topic }) => {
    const told = await admin.fetchTopicOffsets(topic);
    return Object.fromEntries(told.map((row) => [row.partition, [Number(row.low), Number(row.high)]]));
  },
  times: async (admin, { topic, time_ms: timeMs }) => {
    const told = await admin.fetchTopicOffsetsByTimestamp(topic, timeMs);
    return Object.fromEntries(told.map((row) => [row.partition, Number(row.offset)]));
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

async function answer(question) {
  if (question.about === 'produce') return produce(question);
  if (question.about === 'consume') return consume(question);
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

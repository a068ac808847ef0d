// Command peers is franz-go on demand: a question is one line of JSON, so is its answer, until the input ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

type header [2]string

type record struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	Key         *string  `json:"key"`
	Value       *string  `json:"value"`
	TimestampMs int64    `json:"timestamp_ms"`
	Headers     []header `json:"headers"`
}

type question struct {
	About      string   `json:"about"`
	Address    string   `json:"address"`
	Topic      string   `json:"topic"`
	Group      string   `json:"group"`
	Records    []record `json:"records"`
	Codec      string   `json:"codec"`
	Acks       string   `json:"acks"`
	Cooperate  bool     `json:"cooperate"`
	Partition  *int32   `json:"partition"`
	Offset     int64    `json:"offset"`
	Count      int      `json:"count"`
	Partitions int32    `json:"partitions"`
	TimeMs     int64    `json:"time_ms"`
	Name       string   `json:"name"`
	Value      string   `json:"value"`
	Id         string   `json:"id"`
	TimeoutMs  int64    `json:"timeout_ms"`
	PauseMs    int64    `json:"pause_ms"`
	Source     string   `json:"source"`
	Target     string   `json:"target"`
	Security   *secrets `json:"security"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func client(asked question, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(asked.Address, ",")...), kgo.AllowAutoTopicCreation()}
	if asked.Security != nil {
		secure, err := asked.Security.options()
		if err != nil {
			return nil, err
		}
		options = append(options, secure...)
	}
	return kgo.NewClient(append(options, more...)...)
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}

func produce(ctx context.Context, asked question) (any, error) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20 * time.Millisecond),
		kgo.ProducerBatchCompression(codecs[asked.Codec]),
	}
	switch asked.Acks {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	producer, err := client(asked, options...)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var records []*kgo.Record
	for _, each := range asked.Records {
		one := &kgo.Record{
			Topic: asked.Topic, Partition: each.Partition, Key: bytesOf(each.Key), Value: bytesOf(each.Value),
		}
		if each.TimestampMs != 0 {
			one.Timestamp = time.UnixMilli(each.TimestampMs)
		}
		for _, pair := range each.Headers {
			one.Headers = append(one.Headers, kgo.RecordHeader{Key: pair[0], Value: []byte(pair[1])})
		}
		records = append(records, one)
	}
	offsets := []int64{}
	for _, result := range producer.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets, nil
}

// consume reads a partition if one is named, else as a member of a group, which commits what it read.
func consume(ctx context.Context, asked question) (any, error) {
	var options []kgo.Opt
	if asked.Partition != nil {
		from := map[int32]kgo.Offset{*asked.Partition: kgo.NewOffset().At(asked.Offset)}
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{asked.Topic: from}))
	} else {
		options = append(options, kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if !asked.Cooperate {
			options = append(options, kgo.Balancers(kgo.RangeBalancer()))
		}
	}
	consumer, err := client(asked, options...)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var read []*kgo.Record
	for len(read) < asked.Count {
		fetches := consumer.PollRecords(ctx, asked.Count-len(read))
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d records, then: %w", len(read), err)
		}
		read = append(read, fetches.Records()...)
	}
	if asked.Partition == nil {
		if err := consumer.CommitRecords(ctx, read...); err != nil {
			return nil, err
		}
		if err := consumer.LeaveGroupContext(ctx); err != nil {
			return nil, err
		}
	}
	answer := []record{}
	for _, one := range read {
		row := record{Partition: one.Partition, Offset: one.Offset, Key: textOf(one.Key), Value: textOf(one.Value),
			TimestampMs: one.Timestamp.UnixMilli(), Headers: []header{}}
		for _, pair := range one.Headers {
			row.Headers = append(row.Headers, header{pair.Key, string(pair.Value)})
		}
		answer = append(answer, row)
	}
	return answer, nil
}

func answer(asked question) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch asked.About {
	case "produce":
		return produce(ctx, asked)
	case "consume":
		return consume(ctx, asked)
	case "open":
		return open(ctx, asked)
	case "begin", "send", "commit", "abort", "close":
		return transact(ctx, asked)
	case "copy":
		return startCopying(asked)
	case "copied", "copy-stop":
		return copied(asked.About == "copy-stop")
	}
	plain, err := client(asked)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	act, known := acts[asked.About]
	if !known {
		return nil, fmt.Errorf("not known: %s", asked.About)
	}
	return act(ctx, kadm.NewClient(plain), asked)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		reply := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			reply["answer"], err = answer(asked)
		}
		if err != nil {
			reply = map[string]any{"error": err.Error()}
		}
		if err := out.Encode(reply); err != nil {
			os.Exit(1)
		}
	}
}

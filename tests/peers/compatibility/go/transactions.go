package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Transactional producers that do what they are told, under names of their own.
var producers = map[string]*kgo.Client{}

func transactional(asked question) []kgo.Opt {
	timeout := time.Minute
	if asked.TimeoutMs != 0 {
		timeout = time.Duration(asked.TimeoutMs) * time.Millisecond
	}
	return []kgo.Opt{kgo.TransactionalID(asked.Id), kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner())}
}

func open(ctx context.Context, asked question) (any, error) {
	producer, err := client(asked, transactional(asked)...)
	if err != nil {
		return nil, err
	}
	producers[asked.Name] = producer
	// Otherwise the id is asked for, and others are fenced, with the first record.
	_, _, err = producer.ProducerID(ctx)
	return nil, err
}

// transact answers with the name of the error, or null.
func transact(ctx context.Context, asked question) (any, error) {
	producer := producers[asked.Name]
	var err error
	switch asked.About {
	case "begin":
		err = producer.BeginTransaction()
	case "commit":
		err = producer.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		err = producer.EndTransaction(ctx, kgo.TryAbort)
	case "close":
		producer.Close()
	default:
		one := &kgo.Record{Topic: asked.Topic, Partition: *asked.Partition, Value: []byte(asked.Value)}
		err = producer.ProduceSync(ctx, one).FirstErr()
	}
	if err == nil {
		return nil, nil
	}
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message, nil
	}
	return err.Error(), nil
}

// What is read is committed with what is written; after a failure it starts again.
type copying struct {
	transactions atomic.Int64
	isOver       atomic.Bool
	done         chan struct{}
	lock         sync.Mutex
	failures     []string
}

var copier *copying

func startCopying(asked question) (any, error) {
	copier = &copying{done: make(chan struct{}), failures: []string{}}
	go copier.run(asked)
	return nil, nil
}

func copied(stops bool) (any, error) {
	if stops {
		copier.isOver.Store(true)
		<-copier.done
	}
	copier.lock.Lock()
	defer copier.lock.Unlock()
	return map[string]any{"transactions": copier.transactions.Load(), "failures": copier.failures}, nil
}

func (c *copying) run(asked question) {
	defer close(c.done)
	for !c.isOver.Load() {
		if err := c.copyUntilItFails(asked); err != nil {
			c.lock.Lock()
			c.failures = append(c.failures, err.Error())
			c.lock.Unlock()
		}
	}
}

func (c *copying) copyUntilItFails(asked question) error {
	session, err := kgo.NewGroupTransactSession(append(transactional(asked),
		kgo.SeedBrokers(strings.Split(asked.Address, ",")...), kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Source), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second))...)
	if err != nil {
		return err
	}
	defer session.Close()
	for !c.isOver.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := session.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := c.copyRecords(session, asked, fetches.Records()); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) copyRecords(session *kgo.GroupTransactSession, asked question, records []*kgo.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := session.Begin(); err != nil {
		return err
	}
	first := kgo.AbortingFirstErrPromise(session.Client())
	for _, record := range records {
		copy := &kgo.Record{Topic: asked.Target, Partition: record.Partition,
			Value: []byte(fmt.Sprintf("copy of %s", record.Value))}
		session.Produce(ctx, copy, first.Promise())
	}
	failed := first.Err()
	time.Sleep(time.Duration(asked.PauseMs) * time.Millisecond)
	committed, err := session.End(ctx, failed == nil)
	if err != nil {
		return err
	}
	if committed {
		c.transactions.Add(1)
	}
	return failed
}

package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
)

type act func(context.Context, *kadm.Client, question) (any, error)

var acts = map[string]act{
	"create": create, "topics": topics, "grow": grow, "configure": configure, "delete-records": deleteRecords,
	"times": times, "groups": groups, "delete-group": deleteGroup, "delete": deleteTopic,
}

func create(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	_, err := admin.CreateTopic(ctx, asked.Partitions, -1, nil, asked.Topic)
	return nil, err
}

func topics(ctx context.Context, admin *kadm.Client, _ question) (any, error) {
	told, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	answer := map[string]int{}
	for _, topic := range told {
		answer[topic.Topic] = len(topic.Partitions)
	}
	return answer, told.Error()
}

func grow(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	told, err := admin.UpdatePartitions(ctx, int(asked.Partitions), asked.Topic)
	if err != nil {
		return nil, err
	}
	return nil, told.Error()
}

// configure sets a topic's setting, then tells what it is.
func configure(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: asked.Name, Value: &asked.Value}}
	if _, err := admin.AlterTopicConfigs(ctx, set, asked.Topic); err != nil {
		return nil, err
	}
	told, err := admin.DescribeTopicConfigs(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	resource, err := told.On(asked.Topic, nil)
	if err != nil {
		return nil, err
	}
	for _, entry := range resource.Configs {
		if entry.Key == asked.Name {
			return entry.MaybeValue(), nil
		}
	}
	return nil, resource.Err
}

func deleteRecords(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	before := kadm.Offsets{}
	before.AddOffset(asked.Topic, *asked.Partition, asked.Offset, -1)
	told, err := admin.DeleteRecords(ctx, before)
	if err != nil {
		return nil, err
	}
	one, _ := told.Lookup(asked.Topic, *asked.Partition)
	return one.LowWatermark, one.Err
}

func times(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	found, err := admin.ListOffsetsAfterMilli(ctx, asked.TimeMs, asked.Topic)
	if err != nil {
		return nil, err
	}
	begin, err := admin.ListStartOffsets(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	end, err := admin.ListEndOffsets(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	at := func(offsets kadm.ListedOffsets) int64 {
		one, _ := offsets.Lookup(asked.Topic, *asked.Partition)
		return one.Offset
	}
	return map[string]int64{"found": at(found), "begin": at(begin), "end": at(end)}, nil
}

func groups(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	listed, err := admin.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	described, err := admin.DescribeGroups(ctx, asked.Group)
	if err != nil {
		return nil, err
	}
	committed, err := admin.FetchOffsets(ctx, asked.Group)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	committed.Each(func(one kadm.OffsetResponse) { offsets[one.Partition] = one.At })
	_, there := listed[asked.Group]
	return map[string]any{"listed": there, "state": described[asked.Group].State, "committed": offsets}, nil
}

func deleteGroup(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	_, err := admin.DeleteGroup(ctx, asked.Group)
	return nil, err
}

func deleteTopic(ctx context.Context, admin *kadm.Client, asked question) (any, error) {
	_, err := admin.DeleteTopic(ctx, asked.Topic)
	return nil, err
}

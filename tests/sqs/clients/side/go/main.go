// The scenario of test_sdks.py by the AWS SDK for Go v2; the argument is a prefix of names.
//
// It prints one line of JSON for each step.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

type result map[string]any

var (
	ctx    = context.Background()
	client *sqs.Client
)

func main() {
	prefix := os.Args[1]
	client = sqs.NewFromConfig(must(config.LoadDefaultConfig(ctx)))

	dead := *must(client.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName: aws.String(prefix + "-dead"),
	})).QueueUrl
	arn := attributesOf(dead)["QueueArn"]
	name := aws.String(prefix + "-jobs")
	policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":3}`, arn)
	jobs := *must(client.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName:  name,
		Attributes: map[string]string{"RedrivePolicy": policy},
	})).QueueUrl
	must(client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl:   &jobs,
		Attributes: map[string]string{"VisibilityTimeout": "60"},
	}))
	kept := attributesOf(jobs)
	var redrive struct{ DeadLetterTargetArn string }
	check(json.Unmarshal([]byte(kept["RedrivePolicy"]), &redrive))
	parts := strings.Split(redrive.DeadLetterTargetArn, ":")
	tell("create", result{
		"queue":        path.Base(jobs),
		"dead_letters": parts[len(parts)-1],
		"visibility":   kept["VisibilityTimeout"],
	})

	found := must(client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: name}))
	_, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{
		QueueName: aws.String(prefix + "-none"),
	})
	listed := must(client.ListQueues(ctx, &sqs.ListQueuesInput{QueueNamePrefix: &prefix}))
	tell("find", result{
		"same":    *found.QueueUrl == jobs,
		"missing": isMissing(err),
		"listed":  len(listed.QueueUrls),
	})

	sent := must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl:    &jobs,
		MessageBody: aws.String("first"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"text":   {DataType: aws.String("String"), StringValue: aws.String("grüße")},
			"number": {DataType: aws.String("Number.int"), StringValue: aws.String("42")},
			"bytes":  {DataType: aws.String("Binary"), BinaryValue: []byte{0, 1, 254, 255}},
		},
	}))
	tell("send", result{"body": sent.MD5OfMessageBody, "attributes": sent.MD5OfMessageAttributes})

	everything := sqs.ReceiveMessageInput{
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
		MessageAttributeNames:       []string{"All"},
	}
	message := receiveOne(jobs, everything)
	tell("receive", result{
		"body":       message.Body,
		"text":       message.MessageAttributes["text"].StringValue,
		"number":     message.MessageAttributes["number"].StringValue,
		"bytes":      hex.EncodeToString(message.MessageAttributes["bytes"].BinaryValue),
		"attributes": message.MD5OfMessageAttributes,
		"count":      message.Attributes["ApproximateReceiveCount"],
	})

	hidden := len(receive(jobs, sqs.ReceiveMessageInput{}))
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &jobs, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 0,
	}))
	again := receiveOne(jobs, everything)
	tell("visibility", result{
		"hidden": hidden,
		"body":   again.Body,
		"count":  again.Attributes["ApproximateReceiveCount"],
	})

	drop(jobs, again)
	left := attributesOf(jobs)
	tell("delete", result{
		"visible": left["ApproximateNumberOfMessages"],
		"hidden":  left["ApproximateNumberOfMessagesNotVisible"],
	})

	var entries []types.SendMessageBatchRequestEntry
	for n := range 10 {
		entries = append(entries, types.SendMessageBatchRequestEntry{
			Id: id(n), MessageBody: aws.String(fmt.Sprintf("body %d", n)),
		})
	}
	batch := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: &jobs, Entries: entries,
	}))
	tell("send_batch", result{"sent": len(batch.Successful), "failed": len(batch.Failed)})

	var messages []types.Message
	for len(messages) < 10 {
		more := receive(jobs, sqs.ReceiveMessageInput{MaxNumberOfMessages: 10, WaitTimeSeconds: 10})
		if len(more) == 0 {
			log.Fatalf("only %d messages came", len(messages))
		}
		messages = append(messages, more...)
	}
	var bodies []string
	var longer []types.ChangeMessageVisibilityBatchRequestEntry
	var handles []types.DeleteMessageBatchRequestEntry
	for n, one := range messages {
		bodies = append(bodies, *one.Body)
		longer = append(longer, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: id(n), ReceiptHandle: one.ReceiptHandle, VisibilityTimeout: 120,
		})
		handles = append(handles, types.DeleteMessageBatchRequestEntry{
			Id: id(n), ReceiptHandle: one.ReceiptHandle,
		})
	}
	sort.Strings(bodies)
	extended := must(client.ChangeMessageVisibilityBatch(ctx,
		&sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &jobs, Entries: longer}))
	tell("receive_batch", result{"bodies": bodies, "extended": len(extended.Successful)})

	handles[9].ReceiptHandle = aws.String("forged")
	deleted := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: &jobs, Entries: handles,
	}))
	failed := deleted.Failed[0]
	tell("delete_batch", result{
		"deleted": len(deleted.Successful),
		"failed":  []any{failed.Id, failed.Code, failed.SenderFault},
	})
	drop(jobs, messages[9])

	must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &jobs, MessageBody: aws.String("late"), DelaySeconds: 1,
	}))
	early := len(receive(jobs, sqs.ReceiveMessageInput{}))
	begun := time.Now()
	late := receiveOne(jobs, sqs.ReceiveMessageInput{})
	seconds := time.Since(begun).Seconds()
	drop(jobs, late)
	tell("wait", result{"early": early, "body": late.Body, "seconds": seconds})

	sources := []string{}
	for _, url := range must(client.ListDeadLetterSourceQueues(ctx,
		&sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &dead})).QueueUrls {
		sources = append(sources, path.Base(url))
	}
	must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &jobs, MessageBody: aws.String("poison"),
	}))
	for range 3 {
		giveBack(jobs, receiveOne(jobs, sqs.ReceiveMessageInput{}))
	}
	back := len(receive(jobs, sqs.ReceiveMessageInput{}))
	poison := receiveOne(dead, sqs.ReceiveMessageInput{})
	giveBack(dead, poison)
	tell("dead_letter", result{"sources": sources, "back": back, "body": poison.Body})

	task := must(client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &arn}))
	tasks := must(client.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &arn}))
	status := *tasks.Results[0].Status
	moved := receiveOne(jobs, sqs.ReceiveMessageInput{})
	tell("redrive", result{
		"handle": *task.TaskHandle != "",
		"status": status == "RUNNING" || status == "COMPLETED",
		"body":   moved.Body,
	})

	must(client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: &jobs}))
	for _, url := range []string{jobs, dead} {
		must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url}))
	}
	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &jobs, MessageBody: aws.String("nowhere"),
	})
	tell("drop", result{"missing": isMissing(err)})
}

func attributesOf(url string) map[string]string {
	return must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{"All"},
	})).Attributes
}

func receive(url string, input sqs.ReceiveMessageInput) []types.Message {
	input.QueueUrl = &url
	return must(client.ReceiveMessage(ctx, &input)).Messages
}

func receiveOne(url string, input sqs.ReceiveMessageInput) types.Message {
	input.WaitTimeSeconds = 10
	messages := receive(url, input)
	if len(messages) != 1 {
		log.Fatalf("%d messages came instead of one", len(messages))
	}
	return messages[0]
}

// giveBack does what a receive with a visibility of 0 does, which Go's client can't say: it leaves
// out a 0.
func giveBack(url string, message types.Message) {
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 0,
	}))
}

func drop(url string, message types.Message) {
	must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: &url, ReceiptHandle: message.ReceiptHandle,
	}))
}

func isMissing(err error) bool {
	var missing *types.QueueDoesNotExist
	if err != nil && !errors.As(err, &missing) {
		log.Fatal(err)
	}
	return err != nil
}

func id(n int) *string {
	return aws.String(fmt.Sprintf("e%d", n))
}

func tell(step string, told result) {
	told["step"] = step
	fmt.Println(string(must(json.Marshal(told))))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

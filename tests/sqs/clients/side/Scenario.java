import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.*;

/**
 * The scenario of test_sdks.py by the AWS SDK for Java v2; the argument is a prefix of names.
 *
 * <p>Java runs it from its source and it prints one line of JSON for each step.
 */
public final class Scenario {
    private static final SqsClient SQS = SqsClient.create();

    public static void main(String[] arguments) {
        String prefix = arguments[0];
        String dead = SQS.createQueue(r -> r.queueName(prefix + "-dead")).queueUrl();
        String arn = attributesOf(dead).get(QueueAttributeName.QUEUE_ARN);
        String name = prefix + "-jobs";
        String policy = "{\"deadLetterTargetArn\":\"" + arn + "\",\"maxReceiveCount\":3}";
        String jobs = SQS.createQueue(r -> r.queueName(name)
            .attributes(Map.of(QueueAttributeName.REDRIVE_POLICY, policy))).queueUrl();
        SQS.setQueueAttributes(r -> r.queueUrl(jobs)
            .attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "60")));
        var kept = attributesOf(jobs);
        tell("create",
            "queue", nameOf(jobs),
            "dead_letters", kept.get(QueueAttributeName.REDRIVE_POLICY)
                .replaceAll(".*\"deadLetterTargetArn\"\\s*:\\s*\"[^\"]*:([^\":]*)\".*", "$1"),
            "visibility", kept.get(QueueAttributeName.VISIBILITY_TIMEOUT));

        String found = SQS.getQueueUrl(r -> r.queueName(name)).queueUrl();
        tell("find",
            "same", found.equals(jobs),
            "missing", isMissing(() -> SQS.getQueueUrl(r -> r.queueName(prefix + "-none"))),
            "listed", SQS.listQueues(r -> r.queueNamePrefix(prefix)).queueUrls().size());

        SdkBytes bytes = SdkBytes.fromByteArray(new byte[] {0, 1, -2, -1});
        var sent = SQS.sendMessage(r -> r.queueUrl(jobs).messageBody("first").messageAttributes(Map.of(
            "text", attribute(a -> a.dataType("String").stringValue("gr\u00fc\u00dfe")),
            "number", attribute(a -> a.dataType("Number.int").stringValue("42")),
            "bytes", attribute(a -> a.dataType("Binary").binaryValue(bytes)))));
        tell("send", "body", sent.md5OfMessageBody(), "attributes", sent.md5OfMessageAttributes());

        Message message = receiveOne(jobs, r -> r.messageAttributeNames("All")
            .messageSystemAttributeNames(MessageSystemAttributeName.ALL));
        var given = message.messageAttributes();
        tell("receive",
            "body", message.body(),
            "text", given.get("text").stringValue(),
            "number", given.get("number").stringValue(),
            "bytes", HexFormat.of().formatHex(given.get("bytes").binaryValue().asByteArray()),
            "attributes", message.md5OfMessageAttributes(),
            "count", countOf(message));

        int hidden = receive(jobs, r -> {}).size();
        SQS.changeMessageVisibility(r -> r.queueUrl(jobs)
            .receiptHandle(message.receiptHandle()).visibilityTimeout(0));
        Message again = receiveOne(jobs,
            r -> r.messageSystemAttributeNames(MessageSystemAttributeName.ALL));
        tell("visibility", "hidden", hidden, "body", again.body(), "count", countOf(again));

        delete(jobs, again);
        var left = attributesOf(jobs);
        tell("delete",
            "visible", left.get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES),
            "hidden", left.get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));

        var batch = SQS.sendMessageBatch(r -> r.queueUrl(jobs).entries(IntStream.range(0, 10)
            .mapToObj(n -> SendMessageBatchRequestEntry.builder()
                .id("e" + n).messageBody("body " + n).build())
            .toList()));
        tell("send_batch", "sent", batch.successful().size(), "failed", batch.failed().size());

        List<Message> messages = new ArrayList<>();
        while (messages.size() < 10) {
            var more = receive(jobs, r -> r.maxNumberOfMessages(10).waitTimeSeconds(10));
            require(!more.isEmpty(), "only " + messages.size() + " messages came");
            messages.addAll(more);
        }
        var extended = SQS.changeMessageVisibilityBatch(r -> r.queueUrl(jobs)
            .entries(IntStream.range(0, 10)
                .mapToObj(n -> ChangeMessageVisibilityBatchRequestEntry.builder()
                    .id("e" + n).receiptHandle(messages.get(n).receiptHandle())
                    .visibilityTimeout(120).build())
                .toList()));
        tell("receive_batch",
            "bodies", messages.stream().map(Message::body).sorted().toList(),
            "extended", extended.successful().size());

        var deleted = SQS.deleteMessageBatch(r -> r.queueUrl(jobs).entries(IntStream.range(0, 10)
            .mapToObj(n -> DeleteMessageBatchRequestEntry.builder()
                .id("e" + n).receiptHandle(n < 9 ? messages.get(n).receiptHandle() : "forged")
                .build())
            .toList()));
        var failed = deleted.failed().get(0);
        tell("delete_batch",
            "deleted", deleted.successful().size(),
            "failed", List.of(failed.id(), failed.code(), failed.senderFault()));
        delete(jobs, messages.get(9));

        SQS.sendMessage(r -> r.queueUrl(jobs).messageBody("late").delaySeconds(1));
        int early = receive(jobs, r -> {}).size();
        long begun = System.nanoTime();
        Message late = receiveOne(jobs, r -> {});
        double seconds = (System.nanoTime() - begun) / 1e9;
        delete(jobs, late);
        tell("wait", "early", early, "body", late.body(), "seconds", seconds);

        var sources = SQS.listDeadLetterSourceQueues(r -> r.queueUrl(dead)).queueUrls();
        SQS.sendMessage(r -> r.queueUrl(jobs).messageBody("poison"));
        for (int n = 0; n < 3; n++) {
            receiveOne(jobs, r -> r.visibilityTimeout(0));
        }
        int back = receive(jobs, r -> {}).size();
        Message poison = receiveOne(dead, r -> r.visibilityTimeout(0));
        tell("dead_letter",
            "sources", sources.stream().map(Scenario::nameOf).toList(),
            "back", back,
            "body", poison.body());

        var task = SQS.startMessageMoveTask(r -> r.sourceArn(arn));
        var tasks = SQS.listMessageMoveTasks(r -> r.sourceArn(arn)).results();
        Message moved = receiveOne(jobs, r -> {});
        tell("redrive",
            "handle", !task.taskHandle().isEmpty(),
            "status", List.of("RUNNING", "COMPLETED").contains(tasks.get(0).status()),
            "body", moved.body());

        SQS.purgeQueue(r -> r.queueUrl(jobs));
        for (String url : List.of(jobs, dead)) {
            SQS.deleteQueue(r -> r.queueUrl(url));
        }
        tell("drop", "missing",
            isMissing(() -> SQS.sendMessage(r -> r.queueUrl(jobs).messageBody("nowhere"))));
    }

    private static MessageAttributeValue attribute(Consumer<MessageAttributeValue.Builder> fill) {
        return MessageAttributeValue.builder().applyMutation(fill).build();
    }

    private static Map<QueueAttributeName, String> attributesOf(String url) {
        return SQS.getQueueAttributes(r -> r.queueUrl(url).attributeNames(QueueAttributeName.ALL))
            .attributes();
    }

    private static List<Message> receive(
            String url, Consumer<ReceiveMessageRequest.Builder> fill) {
        return SQS.receiveMessage(r -> r.queueUrl(url).applyMutation(fill)).messages();
    }

    private static Message receiveOne(String url, Consumer<ReceiveMessageRequest.Builder> fill) {
        var messages = receive(url, r -> r.waitTimeSeconds(10).applyMutation(fill));
        require(messages.size() == 1, messages.size() + " messages came instead of one");
        return messages.get(0);
    }

    private static void delete(String url, Message message) {
        SQS.deleteMessage(r -> r.queueUrl(url).receiptHandle(message.receiptHandle()));
    }

    private static String countOf(Message message) {
        return message.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT);
    }

    private static String nameOf(String url) {
        return url.substring(url.lastIndexOf('/') + 1);
    }

    private static boolean isMissing(Runnable call) {
        try {
            call.run();
        } catch (QueueDoesNotExistException missing) {
            return true;
        }
        return false;
    }

    private static void require(boolean condition, String otherwise) {
        if (!condition) {
            throw new IllegalStateException(otherwise);
        }
    }

    /** Print one step's line; `result` is names and values by turns. */
    private static void tell(String step, Object... result) {
        Map<String, Object> told = new TreeMap<>();
        for (int n = 0; n < result.length; n += 2) {
            told.put((String) result[n], result[n + 1]);
        }
        told.put("step", step);
        System.out.println(told.entrySet().stream()
            .map(one -> "\"" + one.getKey() + "\":" + json(one.getValue()))
            .collect(Collectors.joining(",", "{", "}")));
    }

    private static String json(Object value) {
        if (value instanceof List<?> list) {
            return list.stream().map(Scenario::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof String text) {
            return text.chars()
                .mapToObj(c -> c < 128 ? String.valueOf((char) c) : String.format("\\u%04x", c))
                .collect(Collectors.joining("", "\"", "\""));
        }
        return String.valueOf(value);
    }
}

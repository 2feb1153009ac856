// The scenario of test_sdks.py by the AWS SDK for JavaScript v3; the argument is a prefix of names.
// It runs where its packages are installed and prints one line of JSON for each step.
import { QueueDoesNotExist, SQS } from "@aws-sdk/client-sqs";

const prefix = process.argv[2];
const sqs = new SQS({});

const tell = (step, result) => console.log(JSON.stringify({ step, ...result }));
const nameOf = (url) => url.split("/").at(-1);

async function receive(QueueUrl, options = {}) {
  return (await sqs.receiveMessage({ QueueUrl, ...options })).Messages ?? [];
}

async function receiveOne(QueueUrl, options = {}) {
  const messages = await receive(QueueUrl, { WaitTimeSeconds: 10, ...options });
  if (messages.length !== 1) throw new Error(`${messages.length} messages came instead of one`);
  return messages[0];
}

async function attributesOf(QueueUrl) {
  return (await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["All"] })).Attributes;
}

async function isMissing(call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof QueueDoesNotExist) return true;
    throw error;
  }
  return false;
}

const dead = (await sqs.createQueue({ QueueName: `${prefix}-dead` })).QueueUrl;
const arn = (await attributesOf(dead)).QueueArn;
const name = `${prefix}-jobs`;
const jobs = (
  await sqs.createQueue({
    QueueName: name,
    Attributes: { RedrivePolicy: JSON.stringify({ deadLetterTargetArn: arn, maxReceiveCount: 3 }) },
  })
).QueueUrl;
await sqs.setQueueAttributes({ QueueUrl: jobs, Attributes: { VisibilityTimeout: "60" } });
const kept = await attributesOf(jobs);
tell("create", {
  queue: nameOf(jobs),
  dead_letters: JSON.parse(kept.RedrivePolicy).deadLetterTargetArn.split(":").at(-1),
  visibility: kept.VisibilityTimeout,
});

const found = await sqs.getQueueUrl({ QueueName: name });
tell("find", {
  same: found.QueueUrl === jobs,
  missing: await isMissing(() => sqs.getQueueUrl({ QueueName: `${prefix}-none` })),
  listed: (await sqs.listQueues({ QueueNamePrefix: prefix })).QueueUrls.length,
});

const sent = await sqs.sendMessage({
  QueueUrl: jobs,
  MessageBody: "first",
  MessageAttributes: {
    text: { DataType: "String", StringValue: "grüße" },
    number: { DataType: "Number.int", StringValue: "42" },
    bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 1, 254, 255) },
  },
});
tell("send", { body: sent.MD5OfMessageBody, attributes: sent.MD5OfMessageAttributes });

const message = await receiveOne(jobs, {
  MessageSystemAttributeNames: ["All"],
  MessageAttributeNames: ["All"],
});
tell("receive", {
  body: message.Body,
  text: message.MessageAttributes.text.StringValue,
  number: message.MessageAttributes.number.StringValue,
  bytes: Buffer.from(message.MessageAttributes.bytes.BinaryValue).toString("hex"),
  attributes: message.MD5OfMessageAttributes,
  count: message.Attributes.ApproximateReceiveCount,
});

const hidden = await receive(jobs);
await sqs.changeMessageVisibility({
  QueueUrl: jobs,
  ReceiptHandle: message.ReceiptHandle,
  VisibilityTimeout: 0,
});
const again = await receiveOne(jobs, { MessageSystemAttributeNames: ["All"] });
tell("visibility", {
  hidden: hidden.length,
  body: again.Body,
  count: again.Attributes.ApproximateReceiveCount,
});

await sqs.deleteMessage({ QueueUrl: jobs, ReceiptHandle: again.ReceiptHandle });
const left = await attributesOf(jobs);
tell("delete", {
  visible: left.ApproximateNumberOfMessages,
  hidden: left.ApproximateNumberOfMessagesNotVisible,
});

const batch = await sqs.sendMessageBatch({
  QueueUrl: jobs,
  Entries: [...Array(10).keys()].map((n) => ({ Id: `e${n}`, MessageBody: `body ${n}` })),
});
tell("send_batch", { sent: batch.Successful.length, failed: (batch.Failed ?? []).length });

const messages = [];
while (messages.length < 10) {
  const more = await receive(jobs, { MaxNumberOfMessages: 10, WaitTimeSeconds: 10 });
  if (more.length === 0) throw new Error(`only ${messages.length} messages came`);
  messages.push(...more);
}
const extended = await sqs.changeMessageVisibilityBatch({
  QueueUrl: jobs,
  Entries: messages.map(({ ReceiptHandle }, n) => ({
    Id: `e${n}`,
    ReceiptHandle,
    VisibilityTimeout: 120,
  })),
});
tell("receive_batch", {
  bodies: messages.map((one) => one.Body).sort(),
  extended: extended.Successful.length,
});

const handles = [...messages.slice(0, 9).map((one) => one.ReceiptHandle), "forged"];
const deleted = await sqs.deleteMessageBatch({
  QueueUrl: jobs,
  Entries: handles.map((ReceiptHandle, n) => ({ Id: `e${n}`, ReceiptHandle })),
});
const [failed] = deleted.Failed;
tell("delete_batch", {
  deleted: deleted.Successful.length,
  failed: [failed.Id, failed.Code, failed.SenderFault],
});
await sqs.deleteMessage({ QueueUrl: jobs, ReceiptHandle: messages[9].ReceiptHandle });

await sqs.sendMessage({ QueueUrl: jobs, MessageBody: "late", DelaySeconds: 1 });
const early = await receive(jobs);
const begun = performance.now();
const late = await receiveOne(jobs);
const seconds = (performance.now() - begun) / 1000;
await sqs.deleteMessage({ QueueUrl: jobs, ReceiptHandle: late.ReceiptHandle });
tell("wait", { early: early.length, body: late.Body, seconds });

const sources = await sqs.listDeadLetterSourceQueues({ QueueUrl: dead });
await sqs.sendMessage({ QueueUrl: jobs, MessageBody: "poison" });
for (let n = 0; n < 3; n += 1) await receiveOne(jobs, { VisibilityTimeout: 0 });
const back = await receive(jobs);
const poison = await receiveOne(dead, { VisibilityTimeout: 0 });
tell("dead_letter", {
  sources: sources.queueUrls.map(nameOf),
  back: back.length,
  body: poison.Body,
});

const task = await sqs.startMessageMoveTask({ SourceArn: arn });
const tasks = await sqs.listMessageMoveTasks({ SourceArn: arn });
const moved = await receiveOne(jobs);
tell("redrive", {
  handle: Boolean(task.TaskHandle),
  status: ["RUNNING", "COMPLETED"].includes(tasks.Results[0].Status),
  body: moved.Body,
});

await sqs.purgeQueue({ QueueUrl: jobs });
for (const QueueUrl of [jobs, dead]) await sqs.deleteQueue({ QueueUrl });
tell("drop", {
  missing: await isMissing(() => sqs.sendMessage({ QueueUrl: jobs, MessageBody: "nowhere" })),
});
sqs.destroy();

// How sqs-consumer works a queue; the argument is a prefix of names. See test_habits.py.
// It runs where its packages are installed and prints one line of JSON for each step.
import { setTimeout as sleep } from "node:timers/promises";
import { SQS } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const prefix = process.argv[2];
const sqs = new SQS({});
const tell = (step, result) => console.log(JSON.stringify({ step, ...result }));

async function makeQueue(name, body) {
  const { QueueUrl } = await sqs.createQueue({
    QueueName: `${prefix}-${name}`,
    Attributes: { VisibilityTimeout: "2" },
  });
  await sqs.sendMessage({ QueueUrl, MessageBody: body });
  return QueueUrl;
}

async function left(QueueUrl) {
  const AttributeNames = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
  ];
  const { Attributes } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames });
  return AttributeNames.reduce((sum, name) => sum + Number(Attributes[name]), 0);
}

function consume(queueUrl, handleMessage, options = {}) {
  const consumer = Consumer.create({
    sqs,
    queueUrl,
    handleMessage,
    messageSystemAttributeNames: ["ApproximateReceiveCount"],
    visibilityTimeout: 2,
    waitTimeSeconds: 1,
    ...options,
  });
  const errors = [];
  for (const event of ["error", "timeout_error"]) {
    consumer.on(event, (error) => errors.push(String(error)));
  }
  consumer.start();
  return { errors, stop: () => consumer.stop({ abort: true }) };
}

const countOf = (message) => Number(message.Attributes.ApproximateReceiveCount);

// A handler that takes longer than the visibility, extended each second.
{
  const url = await makeQueue("slow", "slow");
  const handled = [];
  const rivals = [];
  let done;
  const finished = new Promise((resolve) => (done = resolve));
  const one = consume(
    url,
    async (message) => {
      handled.push(countOf(message));
      await sleep(5000);
      setImmediate(done);
      return message;
    },
    { heartbeatInterval: 1 },
  );
  while (handled.length === 0) await sleep(20);
  const rival = consume(url, async (message) => void rivals.push(countOf(message)));
  await finished;
  while ((await left(url)) > 0 && rivals.length === 0) await sleep(20);
  const errors = [...one.errors];
  one.stop();
  rival.stop();
  tell("heartbeat", { handled, rivals, left: await left(url), errors });
}

// A handler that fails gives its message back at once, and then succeeds.
{
  const url = await makeQueue("failing", "failing");
  const handled = [];
  const begun = performance.now();
  const one = consume(
    url,
    async (message) => {
      handled.push(countOf(message));
      if (handled.length < 3) throw new Error("not yet");
      return message;
    },
    { terminateVisibilityTimeout: true, visibilityTimeout: 60 },
  );
  while (handled.length < 3 || (await left(url)) > 0) await sleep(20);
  one.stop();
  tell("failing", { handled, seconds: (performance.now() - begun) / 1000 });
}

// A handler that hangs longer than the visibility: another consumer gets the message.
{
  const url = await makeQueue("hung", "hung");
  const handled = [];
  const begun = performance.now();
  const hung = consume(url, async () => new Promise(() => {}), { visibilityTimeout: 1 });
  await sleep(300);
  const other = consume(url, async (message) => {
    handled.push(countOf(message));
    return message;
  });
  while (handled.length === 0 || (await left(url)) > 0) await sleep(20);
  const seconds = (performance.now() - begun) / 1000;
  hung.stop();
  other.stop();
  tell("hung", { handled, seconds });
}
process.exit(0);

"""What Shoryuken does to a queue, by boto3: `shoryuken.py PREFIX`. See `test_habits.py`.

The gem is Ruby's; its calls are these: it receives up to ten messages with their attributes, and
with `auto_visibility_timeout` it extends the visibility a while before it ends, as long as the
worker runs. Its users choose a visibility of seconds.
"""

import json
import sys
import time
from typing import Any

import boto3  # type: ignore[import-not-found,unused-ignore]

VISIBILITY = 1


def main() -> None:
    """Print one line of JSON for each step."""
    sqs: Any = boto3.client("sqs")
    made = sqs.create_queue(
        QueueName=f"{sys.argv[1]}-ruby", Attributes={"VisibilityTimeout": str(VISIBILITY)}
    )
    url = made["QueueUrl"]

    def receive(wait: int = 0) -> list[Any]:
        answer = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return list(answer.get("Messages", ()))

    sqs.send_message(
        QueueUrl=url,
        MessageBody=json.dumps({"job": 1}),
        MessageAttributes={
            "shoryuken_class": {"DataType": "String", "StringValue": "Worker"},
        },
    )
    (message,) = receive(wait=5)
    begun = time.monotonic()
    (lapsed,) = receive(wait=5)
    seconds = time.monotonic() - begun
    print(
        json.dumps(
            {
                "step": "lapsed",
                "class": lapsed["MessageAttributes"]["shoryuken_class"]["StringValue"],
                "count": lapsed["Attributes"]["ApproximateReceiveCount"],
                "another_handle": lapsed["ReceiptHandle"] != message["ReceiptHandle"],
                "seconds": seconds,
            }
        )
    )

    # Extended to 1 s from now four times a second, while another worker asks.
    stolen = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=lapsed["ReceiptHandle"], VisibilityTimeout=VISIBILITY
        )
        stolen += len(receive())
        time.sleep(0.25)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=lapsed["ReceiptHandle"])
    left = receive(wait=2)
    print(json.dumps({"step": "extended", "stolen": stolen, "left": len(left)}))


main()

"""A Celery program whose broker is SQS: tasks, and what sends them. See `test_celery.py`.

The environment names the broker (SQS_BROKER), the queue (SQS_QUEUE), the seconds of a visibility
(SQS_VISIBILITY) and the file where each task that was done adds a line (SQS_DONE).
"""

import os
import sys
import time
from typing import Any

from celery import Celery  # type: ignore[import-not-found,import-untyped,unused-ignore]

app: Any = Celery("app", broker=os.environ["SQS_BROKER"])
app.conf.update(
    task_default_queue=os.environ["SQS_QUEUE"],
    task_acks_late=True,  # else a worker that is killed has acknowledged what it did not do
    worker_prefetch_multiplier=4,
    worker_enable_remote_control=False,  # needs a fan-out, which is SNS's
    broker_transport_options={
        "region": "us-east-1",
        "visibility_timeout": int(os.environ["SQS_VISIBILITY"]),
        "wait_time_seconds": 1,
        "polling_interval": 0,
    },
)


def note(task: str) -> None:
    """Add a line to the file, in one write, so that lines of several processes don't mix."""
    with open(os.environ["SQS_DONE"], "ab", buffering=0) as done:  # noqa: PTH123
        done.write(f"{task}\n".encode())


@app.task(name="work")  # type: ignore[untyped-decorator,unused-ignore]
def work(number: str) -> None:
    """Do nothing for a while, and note it."""
    time.sleep(0.002)
    note(number)


@app.task(name="flaky", bind=True)  # type: ignore[untyped-decorator,unused-ignore]
def flaky(self: Any, number: str, failures: int) -> None:
    """Fail some times, each time with a retry, before the work is done."""
    if self.request.retries < failures:
        raise self.retry(countdown=0, max_retries=failures)
    note(number)


def main() -> None:
    """Send as many tasks as the command line says."""
    for number in range(int(sys.argv[1])):
        if number % 10 == 0:
            flaky.delay(str(number), 1 + number % 3)
        else:
            work.delay(str(number))


if __name__ == "__main__":
    main()

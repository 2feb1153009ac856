"""Celery with SQS as its broker: what workers that are killed and retries come to."""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.environments import CELERY
from tests.services.process import Process, wait_until
from tests.sqs.clients.conftest import (
    IS_LONG,
    SIDE,
    environment_of,
)
from tests.sqs.conftest import ask_server

pytestmark = pytest.mark.skipif(not IS_LONG, reason="a minute: tests/run --all")

TASKS = 1000


class Program:
    """A Celery program at a server: its queue, its workers and the log of what was done."""

    def __init__(self, url: str, place: Path) -> None:
        self._url = url
        self._queue = f"q{uuid.uuid4().hex[:12]}"
        self._place = place
        self._log = place / "done"
        self._env = {
            **environment_of(url),
            "SQS_BROKER": url.replace("http://", "sqs://test:test@"),
            "SQS_QUEUE": self._queue,
            "SQS_VISIBILITY": "10",
            "SQS_DONE": str(self._log),
        }
        self.workers: list[Process] = []

    def start_worker(self) -> Process:
        """Start a worker of two processes, which keeps eight tasks in hand beside the two."""
        worker = Process(
            [
                *(CELERY.program("python"), "-m", "celery", "-A", "celery_app", "worker"),
                *("--pool", "prefork", "--concurrency", "2"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            log=self._place / f"worker{len(self.workers)}",
            cwd=SIDE,
            env=self._env,
        )
        worker.start()
        self.workers.append(worker)
        return worker

    def sending(self, count: int) -> "subprocess.Popen[bytes]":
        """Start sending so many tasks."""
        command = [CELERY.program("python"), "celery_app.py", str(count)]
        return subprocess.Popen(command, cwd=SIDE, env=self._env)

    def done(self) -> set[str]:
        """The tasks that were done."""
        return set(self._log.read_text().split()) if self._log.exists() else set()

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait until something has happened while the workers run."""
        wait_until(happened, [one for one in self.workers if one.alive()], timeout=100)

    def is_empty(self) -> bool:
        """Whether no message is visible or in flight."""
        url = ask_server(self._url, "GetQueueUrl", QueueName=self._queue)["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        asked = {"QueueUrl": url, "AttributeNames": names}
        found = ask_server(self._url, "GetQueueAttributes", **asked)["Attributes"]
        return {found[name] for name in names} == {"0"}

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def program(sqs_url: str, tmp_path: Path) -> Iterator[Program]:
    """A program at our server."""
    made = Program(sqs_url, tmp_path)
    yield made
    made.close()


def test_a_worker_that_is_killed_loses_no_task(program: Program) -> None:
    first, _second = program.start_worker(), program.start_worker()
    with program.sending(TASKS):  # workers may be as fast as what sends
        program.wait(lambda: len(program.done()) >= TASKS // 5)
        first.kill()
        done_before = len(program.done())
    program.start_worker()
    program.wait(lambda: len(program.done()) == TASKS)
    assert done_before < TASKS
    assert program.done() == {str(number) for number in range(TASKS)}
    program.wait(program.is_empty)

"""Celery with SQS as its broker: what workers that are killed, retries and delays come to.

Celery's `countdown` is the worker's: it receives the task at once and holds it until its time, so
a long one outlives the visibility and is done twice. What the server keeps is SQS's DelaySeconds,
which Celery's transport sends where `apply_async(..., DelaySeconds=600)` names it.
"""

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.conftest import MovableServer
from tests.server import ServerProcess
from tests.services.environments import CELERY
from tests.services.process import Process, wait_until
from tests.sqs.clients.conftest import (
    IS_LONG,
    SERVER_SETTINGS,
    SIDE,
    environment_of,
)
from tests.sqs.conftest import ask_server

pytestmark = pytest.mark.skipif(not IS_LONG, reason="a minute: tests/run --all")

TASKS = 1000


class Program:
    """A Celery program at a server: its queue, its workers and the log of what was done."""

    def __init__(self, url: str, place: Path, *, visibility: int) -> None:
        self._url = url
        self._queue = f"q{uuid.uuid4().hex[:12]}"
        self._place = place
        self._log = place / "done"
        self._env = {
            **environment_of(url),
            "SQS_BROKER": url.replace("http://", "sqs://test:test@"),
            "SQS_QUEUE": self._queue,
            "SQS_VISIBILITY": str(visibility),
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

    def send(self, *words: str) -> None:
        """Send tasks, as `celery_app.py` says."""
        with self.sending(*words) as sender:
            assert sender.wait(100) == 0

    def sending(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start sending tasks."""
        command = [CELERY.program("python"), "celery_app.py", *words]
        return subprocess.Popen(command, cwd=SIDE, env=self._env)

    def done(self) -> dict[str, list[float]]:
        """When each task was done, by the wall clock."""
        times: dict[str, list[float]] = {}
        text = self._log.read_text() if self._log.exists() else ""
        for line in text.splitlines():
            task, _, at = line.partition(" ")
            times.setdefault(task, []).append(float(at))
        return times

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait until something has happened while the workers run."""
        wait_until(happened, [one for one in self.workers if one.alive()], timeout=100)

    def counts(self) -> tuple[int, int, int]:
        """How many messages are visible, in flight and delayed."""
        url = ask_server(self._url, "GetQueueUrl", QueueName=self._queue)["QueueUrl"]
        names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        asked = {"QueueUrl": url, "AttributeNames": names}
        found = ask_server(self._url, "GetQueueAttributes", **asked)["Attributes"]
        visible, in_flight, delayed = (int(found[name]) for name in names)
        return visible, in_flight, delayed

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.kill()


@pytest.fixture(scope="module")
def movable_sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovableServer]:
    """A server for SQS's clients whose clock the test moves."""
    offset = tmp_path_factory.mktemp("clock") / "offset"
    env = {**SERVER_SETTINGS, "ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset)}
    with ServerProcess("memory://", env=env) as process:
        yield MovableServer(process, offset)


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[[str, int], Program]]:
    """A function that makes a program at a server, with a visibility in seconds."""
    made: list[Program] = []

    def start(url: str, visibility: int) -> Program:
        made.append(Program(url, tmp_path, visibility=visibility))
        return made[-1]

    yield start
    for program in made:
        program.close()


StartProgram = Callable[[str, int], Program]


def test_a_worker_that_is_killed_loses_no_task(sqs_url: str, start_program: StartProgram) -> None:
    program = start_program(sqs_url, 10)
    first, _second = program.start_worker(), program.start_worker()
    with program.sending("many", str(TASKS)):  # workers may be as fast as what sends
        program.wait(lambda: len(program.done()) >= TASKS // 5)
        first.kill()
        done_before = len(program.done())
    program.start_worker()
    program.wait(lambda: len(program.done()) == TASKS)
    assert done_before < TASKS
    assert program.done().keys() == {str(number) for number in range(TASKS)}
    program.wait(lambda: program.counts() == (0, 0, 0))


def test_a_server_that_is_killed_loses_no_task(tmp_path: Path, start_program: StartProgram) -> None:
    store = f"embedded://{tmp_path}/store"
    with ServerProcess(store, env=SERVER_SETTINGS) as server:
        program = start_program(server.url, 10)
        program.send("many", str(TASKS // 4))
        worker = program.start_worker()
        program.wait(lambda: len(program.done()) >= TASKS // 20)
        server.kill()
        done_before = len(program.done())
        server.start()
        # The loop of Celery's transport ends with a request that nobody answers.
        worker.kill()
        program.start_worker()
        program.wait(lambda: len(program.done()) == TASKS // 4)
        assert done_before < TASKS // 4
        program.wait(lambda: program.counts() == (0, 0, 0))


def test_the_server_keeps_a_delay_of_ten_minutes(
    movable_sqs: MovableServer, start_program: StartProgram
) -> None:
    program = start_program(movable_sqs.url, 60)
    program.start_worker()
    program.send("later", "delayed", "DelaySeconds=600")
    assert program.counts() == (0, 0, 1)
    movable_sqs.advance(500)
    program.send("later", "meanwhile")
    program.wait(lambda: "meanwhile" in program.done())
    assert "delayed" not in program.done()
    movable_sqs.advance(100)
    program.wait(lambda: "delayed" in program.done())
    program.wait(lambda: program.counts() == (0, 0, 0))
    assert len(program.done()["delayed"]) == 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["countdown=4"], (0, 1, 0)),
        (["countdown=4", "DelaySeconds=4"], (0, 0, 1)),
    ],
    ids=["by the worker", "by the server"],
)
def test_a_countdown_is_kept_to(
    sqs_url: str, start_program: StartProgram, options: list[str], kept: tuple[int, int, int]
) -> None:
    program = start_program(sqs_url, 60)
    program.start_worker()
    program.send("later", "warm")
    program.wait(lambda: "warm" in program.done() and program.counts() == (0, 0, 0))
    sent = time.time()
    with program.sending("later", "task", *options):
        program.wait(lambda: program.counts() == kept)
    program.wait(lambda: "task" in program.done())
    program.wait(lambda: program.counts() == (0, 0, 0))
    (done,) = program.done()["task"]
    assert done - sent >= 3.9

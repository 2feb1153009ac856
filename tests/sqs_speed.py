"""Measure SQS's operations beside ElasticMQ's queue in memory: `python -m tests.sqs_speed`.

Each round measures every server, one after the other. A figure is the median over the rounds, and
its ratio is to ElasticMQ in the same round, so that it holds when the machine's speed drifts. The
load is the same for all: one process that sends prepared requests on raw connections, so that the
servers have most of two cores. Beside each figure is the processor's time that the server spent for
a message, which a busy machine changes least. `--ours` leaves ElasticMQ out.
"""

import argparse
import contextlib
import itertools
import json
import re
import selectors
import socket
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from tests.server import ServerProcess
from tests.services.elasticmq import start_elasticmq
from zaqar_lite.bench import machine

BODY = "x" * 128
SCENARIOS = ("send 1", "send 10", "receive 10 + delete 10")
ELASTICMQ = "ElasticMQ"
RATE, SPENT = "messages a second", "processor's microseconds a message"
Next = Callable[[bytes | None], tuple[bytes | None, int]]
"""From the last answer to the next request, None when there is no more, and the messages done."""


_numbers = itertools.count()


def signed(request: bytes) -> bytes:
    """Give a request a signature of its own, as SDKs do: no head comes twice."""
    before, name, rest = request.partition(b"Signature=")
    return b"%b%b%064x%b" % (before, name, next(_numbers), rest[64:])


class Connection:
    """One connection that always has one request under way."""

    def __init__(self, address: tuple[str, int], following: Next) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.done = 0
        self._following = following
        self._answer = b""

    def go_on(self, answer: bytes | None, has_time: bool = True) -> bool:
        """Count what an answer did and send the next request; tell whether one is under way."""
        request, done = self._following(answer)
        self.done += done
        if request is None or not has_time:
            return False
        self.socket.sendall(signed(request))
        return True

    def read(self) -> bytes | None:
        """Read what has come; return the body of an answer that is complete."""
        self._answer += self.socket.recv(262_144)
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if not separator:
            return None
        found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not head.startswith(b"HTTP/1.1 200") or found is None:
            raise RuntimeError(f"not the answer of a success: {self._answer[:500]!r}")
        if len(body) < int(found[1]):
            return None
        self._answer = b""
        return body


class Target:
    """A server that is measured: where it listens, and how a request to it is written."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._address = parts.netloc, (str(parts.hostname), int(parts.port or 80))

    def request(self, operation: str, document: Any) -> bytes:
        """Write a request as an SDK does; its signature, which nobody checks here, comes later."""
        body = json.dumps(document, separators=(",", ":")).encode()
        head = (
            "POST / HTTP/1.1",
            f"Host: {self._host}",
            "User-Agent: sqs-speed",
            f"X-Amz-Target: AmazonSQS.{operation}",
            "Content-Type: application/x-amz-json-1.0",
            "X-Amz-Date: 20261128T000000Z",
            "Authorization: AWS4-HMAC-SHA256 Credential=test/20261128/us-east-1/sqs/aws4_request, "
            f"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature={0:064}",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join((*head, "", "")).encode() + body

    def call(self, operation: str, document: Any) -> Any:
        """Call one operation."""
        answers: list[bytes] = []

        def once(answer: bytes | None) -> tuple[bytes | None, int]:
            if answer is None:
                return self.request(operation, document), 0
            answers.append(answer)
            return None, 0

        self.load(once, connections=1, seconds=30)
        return json.loads(answers[0] or b"null")

    def load(self, following: Next, *, connections: int, seconds: float) -> dict[str, float]:
        """Keep connections busy for some seconds, or until no more is to do."""
        servers = machine.server_processes(self._address[1])
        begun, spent = time.monotonic(), machine.cpu_seconds(servers)
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            opened = [Connection(self._address, following) for _ in range(connections)]
            for one in opened:
                stack.enter_context(contextlib.closing(one.socket))
                if one.go_on(None):
                    selector.register(one.socket, selectors.EVENT_READ, one)
            while selector.get_map():
                has_time = time.monotonic() - begun < seconds
                for key, _ in selector.select(30):
                    connection: Connection = key.data
                    answer = connection.read()
                    if answer is not None and not connection.go_on(answer, has_time):
                        selector.unregister(connection.socket)
        done = sum(one.done for one in opened)
        passed, spent = time.monotonic() - begun, machine.cpu_seconds(servers) - spent
        return {RATE: done / passed, SPENT: spent * 1e6 / max(done, 1)}


def sending(target: Target, url: str, batch: int, most: int | None = None) -> Next:
    """Send messages one at a time, or in batches; `most` ends it after so many."""
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(batch)]
    request = (
        target.request("SendMessage", {"QueueUrl": url, "MessageBody": BODY})
        if batch == 1
        else target.request("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    )
    sent = 0

    def following(answer: bytes | None) -> tuple[bytes | None, int]:
        nonlocal sent
        _check_none_failed(answer)
        sent += batch
        is_more = most is None or sent <= most
        return (request if is_more else None), (0 if answer is None else batch)

    return following


def receiving(target: Target, url: str) -> Next:
    """Receive ten messages and delete them, until the queue is empty."""
    receive = target.request("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})

    def following(answer: bytes | None) -> tuple[bytes | None, int]:
        _check_none_failed(answer)
        if answer is None:
            return receive, 0
        if deleted := answer.count(b'"Id"'):
            return receive, deleted
        handles = [one["ReceiptHandle"] for one in json.loads(answer).get("Messages", ())]
        if not handles:
            return None, 0
        entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
        return target.request("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries}), 0

    return following


def _check_none_failed(answer: bytes | None) -> None:
    if answer is not None and b'"Failed":[{' in answer:
        raise RuntimeError(f"a batch failed: {answer[:500]!r}")


def measure(url: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure one server once: for each scenario its figures, on a new queue."""
    target = Target(url)
    name = {"QueueName": f"q{time.monotonic_ns()}"}
    busy = {"connections": arguments.connections, "seconds": arguments.seconds}
    figures: dict[str, dict[str, float]] = {}
    for scenario in SCENARIOS:
        queue = target.call("CreateQueue", name)["QueueUrl"]
        if scenario.startswith("send"):
            batch = int(scenario.split()[1])
            figures[scenario] = target.load(sending(target, queue, batch), **busy)
        else:
            filling = sending(target, queue, 10, most=arguments.messages)
            target.load(filling, connections=arguments.connections, seconds=60)
            figures[scenario] = target.load(receiving(target, queue), **busy)
        target.call("DeleteQueue", {"QueueUrl": queue})
    return figures


@contextlib.contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Start what is measured; its URL by its name."""
    with contextlib.ExitStack() as stack:
        started: dict[str, str] = {}
        if not arguments.ours:
            started[ELASTICMQ] = stack.enter_context(start_elasticmq()).url
        data = stack.enter_context(tempfile.TemporaryDirectory())
        for name, store in (("memory", "memory://"), ("embedded", f"embedded://{data}/store")):
            server = ServerProcess(store, env={"ZAQAR_LITE_SQS": "true"})
            started[name] = stack.enter_context(server).url
        yield started


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm-up", type=int, default=4, help="rounds of ElasticMQ alone, before")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--messages", type=int, default=30_000, help="that are received")
    parser.add_argument("--ours", action="store_true", help="leave ElasticMQ out")
    arguments = parser.parse_args()
    with servers(arguments) as urls:
        # A JVM compiles while it runs what it has run often.
        if ELASTICMQ in urls:
            for _ in range(arguments.warm_up):
                measure(urls[ELASTICMQ], arguments)
        rounds = [
            {name: measure(url, arguments) for name, url in urls.items()}
            for _ in range(arguments.rounds)
        ]
    for what in (RATE, SPENT):
        print(f"{what}, medians of {arguments.rounds} rounds of {arguments.seconds:g} s")
        print(f"{'':24}" + "".join(f"{name:>22}" for name in urls))
        for scenario in SCENARIOS:
            cells = (
                _cell(
                    [
                        (one[name][scenario][what], one[next(iter(urls))][scenario][what])
                        for one in rounds
                    ]
                )
                for name in urls
            )
            print(f"{scenario:24}" + "".join(cells))


def _cell(figures: list[tuple[float, float]]) -> str:
    median = statistics.median(figure for figure, _ in figures)
    ratio = statistics.median(figure / first for figure, first in figures)
    return f"{median:>14,.0f} ({ratio:5.2f})"


if __name__ == "__main__":
    main()

"""Measure settling beside deleting: `python -m tests.measure_settling [--store URI] [--inside]`.

Twenty messages are posted and claimed; then they are settled in one request - five deleted, five
released as failed with a reason, five extended, five sent to the dead letters - or deleted in one.
With `--acts`, also twenty in each way alone. The kinds take turns, and which is first changes from
round to round. Printed are the medians of the requests' times, and of their ratios to the delete of
the same round.

One connection to a server of its own; with `--inside` the application is called in this process
(no HTTP server, no socket), and the CPU time of this process is printed too: that of a request
until its answer, and with what goes on for some milliseconds after it.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from tests.api.conftest import running
from tests.server import ServerProcess
from tests.services import start_redis
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load

_CLIENT_ID = "3381af92-2b9e-11e3-b191-71861300734c"
_HEADERS = f"Host: localhost\r\nClient-ID: {_CLIENT_ID}\r\nX-Project-ID: p\r\n"
_QUEUE = "/v2/queues/q"
_COUNT = 20
_WARM_UP = 20


class Cost(NamedTuple):
    """What a request took, in seconds: to its answer, in CPU, and in CPU with what followed."""

    wall: float = 0.0
    cpu: float = 0.0
    cpu_after: float = 0.0


class Asking(Protocol):
    """One who sends requests, one at a time; `took` is the cost of the last."""

    took: Cost

    def ask(self, method: str, path: str, document: Any = None) -> bytes:
        """Send a request; the body of its answer."""


class Connection:
    """A keep-alive connection to the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self.took = Cost()

    def ask(self, method: str, path: str, document: Any = None) -> bytes:
        """Send a request, as one packet where it can be; the body of its answer.

        Raises:
            RuntimeError: it was refused.
        """
        body = b"" if document is None else json.dumps(document).encode()
        head = f"{method} {path} HTTP/1.1\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        started = time.perf_counter()
        self._socket.sendall(request)
        status = int(self._answers.readline()[9:12])
        length = 0
        while (line := self._answers.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        content = self._answers.read(length)
        self.took = Cost(time.perf_counter() - started)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {content!r}")
        return content


class Inside:
    """The application in this process, called as an HTTP server would."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop
        self.took = Cost()

    def ask(self, method: str, path: str, document: Any = None) -> bytes:
        """Send a request; the body of its answer.

        Raises:
            RuntimeError: it was refused.
        """
        return self._loop.run_until_complete(self._ask(method, path, document))

    async def _ask(self, method: str, path: str, document: Any) -> bytes:
        body = b"" if document is None else json.dumps(document).encode()
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8888),
            "headers": [
                (b"host", b"localhost"), (b"client-id", _CLIENT_ID.encode()),
                (b"x-project-id", b"p"), (b"content-length", str(len(body)).encode()),
            ],
        }  # fmt: skip
        sent: list[Any] = []
        requested = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            if (first := next(requested, None)) is not None:
                return first
            return await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(message)

        cpu, started = time.process_time(), time.perf_counter()
        await self._app(scope, receive, send)
        wall, answered = time.perf_counter() - started, time.process_time()
        await asyncio.sleep(0.003)
        self.took = Cost(wall, answered - cpu, time.process_time() - cpu)
        if sent[0]["status"] >= 300:
            raise RuntimeError(f"{method} {path}: {sent}")
        return b"".join(message.get("body", b"") for message in sent[1:])


def claim(connection: Asking) -> tuple[str, list[str]]:
    """Post and claim twenty messages; the claim's id and theirs."""
    document = {"messages": [{"body": "x" * 200}] * _COUNT}
    connection.ask("POST", f"{_QUEUE}/messages", document)
    answer = json.loads(connection.ask("POST", f"{_QUEUE}/claims?limit={_COUNT}"))["messages"]
    assert len(answer) == _COUNT
    return answer[0]["href"].rpartition("=")[2], [message["id"] for message in answer]


Document = Mapping[str, Any]


def released(ids: list[str]) -> Document:
    """Give messages back as failed, for later."""
    reason = {"delay": 600, "failed": True, "reason": "http_503", "detail": "away"}
    return {"release": [{"id": one, **reason} for one in ids]}


def extended(ids: list[str]) -> Document:
    """Hold messages for longer."""
    return {"extend": [{"id": one, "ttl": 600} for one in ids]}


def dead(ids: list[str]) -> Document:
    """Send messages to the dead letters."""
    return {"dead": [{"id": one, "reason": "bad_format"} for one in ids]}


def mixed(ids: list[str]) -> Document:
    """Five in each way."""
    return {
        "delete": ids[:5],
        **released(ids[5:10]),
        **extended(ids[10:15]),
        **dead(ids[15:]),
    }


KINDS: dict[str, Callable[[list[str]], Document]] = {
    "mixed": mixed,
    "ack": lambda ids: {"delete": ids},
    "release": released,
    "extend": extended,
    "dead": dead,
}


def settle(connection: Asking, kind: str) -> Cost:
    """Settle twenty messages; what that request took."""
    claim_id, ids = claim(connection)
    document = KINDS[kind](ids)
    answer = connection.ask("POST", f"{_QUEUE}/claims/{claim_id}/settle", document)
    took = connection.took
    assert [one["status"] for one in json.loads(answer)["results"]] == [204] * _COUNT
    return took


def delete(connection: Asking) -> Cost:
    """Delete twenty messages by their claim; what that request took."""
    claim_id, ids = claim(connection)
    path = f"{_QUEUE}/messages?ids={','.join(ids)}&claim_ids={claim_id}"
    connection.ask("DELETE", path)
    return connection.took


def measure(connection: Asking, kinds: list[str], rounds: int) -> dict[str, list[Cost]]:
    """What deleting and each kind of settling took, in rounds."""
    connection.ask("PUT", _QUEUE, {"_dead_letter_queue": "letters", "_max_failures": 9})
    taken: dict[str, list[Cost]] = {kind: [] for kind in ("delete", *kinds)}
    names = list(taken)
    for number in range(_WARM_UP + rounds):
        for kind in names[number % len(names) :] + names[: number % len(names)]:
            took = delete(connection) if kind == "delete" else settle(connection, kind)
            if number >= _WARM_UP:
                taken[kind].append(took)
        if number % 50 == 0:  # what is parked, held and dead must not pile up
            connection.ask("POST", f"{_QUEUE}/purge", {"resource_types": ["messages"]})
            connection.ask("POST", "/v2/queues/letters/purge", {"resource_types": ["messages"]})
    return taken


def show(taken: dict[str, list[Cost]]) -> None:
    """Print a line for each kind: microseconds, and the median of its ratios to the delete."""
    print(f"{'':10}{'wall us':>10}{'':>7}{'CPU us':>10}{'':>7}{'after us':>10}")
    for kind, costs in taken.items():
        line = f"{kind:10}"
        for measured, base in zip(
            zip(*costs, strict=True), zip(*taken["delete"], strict=True), strict=True
        ):
            line += f"{statistics.median(measured) * 1e6:>10.0f}"
            ratios = [one / other for one, other in zip(measured, base, strict=True) if other]
            line += f"{statistics.median(ratios):>6.2f}x" if ratios else f"{'':>7}"
        print(line)


@contextlib.contextmanager
def opened(store: str, *, inside: bool) -> Iterator[Asking]:
    """A server of the store, or the application itself."""
    if not inside:
        with ServerProcess(store) as server:
            yield Connection(server.port)
        return
    with asyncio.Runner() as runner:
        app = create_app(load(environment={}, overrides={"store": store}))
        loop = runner.get_loop()
        lifespan = running(app)
        loop.run_until_complete(lifespan.__aenter__())
        try:
            yield Inside(app, loop)
        finally:
            loop.run_until_complete(lifespan.__aexit__(None, None, None))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory://", help="redis: a Redis of its own")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--acts", action="store_true")
    arguments = parser.parse_args()
    kinds = list(KINDS) if arguments.acts else ["mixed"]
    with contextlib.ExitStack() as stack:
        store = arguments.store
        if store == "redis":
            store = stack.enter_context(start_redis()).url
        elif store == "embedded":
            store = f"embedded://{stack.enter_context(tempfile.TemporaryDirectory())}"
        connection = stack.enter_context(opened(store, inside=arguments.inside))
        print(f"{arguments.store}: {_COUNT} messages, {arguments.rounds} rounds")
        show(measure(connection, kinds, arguments.rounds))


if __name__ == "__main__":
    main()

"""Measure settling beside deleting: `python -m tests.measure_settling [--store URI]`.

Twenty messages are posted and claimed; then they are settled in one request - five deleted, five
released as failed with a reason, five extended, five sent to the dead letters - or deleted in one.
The two take turns on one connection, and which is first changes from round to round. Printed are
the medians of the requests' times and of the ratios of each round.
"""

import argparse
import json
import socket
import statistics
import time
from typing import Any

from tests.server import ServerProcess

_HEADERS = (
    "Host: localhost\r\nClient-ID: 3381af92-2b9e-11e3-b191-71861300734c\r\nX-Project-ID: p\r\n"
)
_QUEUE = "/v2/queues/q"
_COUNT = 20
_WARM_UP = 20


class Connection:
    """A keep-alive connection to the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self.took = 0.0
        """Seconds from the last request to its answer."""

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
        self.took = time.perf_counter() - started
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {content!r}")
        return content


def claim(connection: Connection) -> tuple[str, list[str]]:
    """Post and claim twenty messages; the claim's id and theirs."""
    document = {"messages": [{"body": "x" * 200}] * _COUNT}
    connection.ask("POST", f"{_QUEUE}/messages", document)
    answer = json.loads(connection.ask("POST", f"{_QUEUE}/claims?limit={_COUNT}"))["messages"]
    assert len(answer) == _COUNT
    return answer[0]["href"].rpartition("=")[2], [message["id"] for message in answer]


def settle(connection: Connection) -> float:
    """Settle twenty messages, in four ways; the seconds that it took."""
    claim_id, ids = claim(connection)
    document = {
        "delete": ids[:5],
        "release": [
            {"id": one, "delay": 600, "failed": True, "reason": "http_503", "detail": "away"}
            for one in ids[5:10]
        ],
        "extend": [{"id": one, "ttl": 600} for one in ids[10:15]],
        "dead": [{"id": one, "reason": "bad_format"} for one in ids[15:]],
    }
    answer = connection.ask("POST", f"{_QUEUE}/claims/{claim_id}/settle", document)
    took = connection.took
    assert [one["status"] for one in json.loads(answer)["results"]] == [204] * _COUNT
    return took


def delete(connection: Connection) -> float:
    """Delete twenty messages by their claim; the seconds that it took."""
    claim_id, ids = claim(connection)
    path = f"{_QUEUE}/messages?ids={','.join(ids)}&claim_ids={claim_id}"
    connection.ask("DELETE", path)
    return connection.took


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    settled: list[float] = []
    deleted: list[float] = []
    with ServerProcess(arguments.store) as server:
        connection = Connection(server.port)
        connection.ask("PUT", _QUEUE, {"_dead_letter_queue": "letters", "_max_failures": 9})
        for number in range(_WARM_UP + arguments.rounds):
            if number % 2:
                settled.append(settle(connection))
                deleted.append(delete(connection))
            else:
                deleted.append(delete(connection))
                settled.append(settle(connection))
    settled, deleted = settled[_WARM_UP:], deleted[_WARM_UP:]
    ratio = statistics.median(one / other for one, other in zip(settled, deleted, strict=True))
    print(
        f"{arguments.store}: settle {_COUNT} mixed {statistics.median(settled) * 1e3:.2f} ms, "
        f"delete {_COUNT} {statistics.median(deleted) * 1e3:.2f} ms, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()

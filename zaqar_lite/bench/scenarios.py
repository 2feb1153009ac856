"""The scenarios: scripts of prepared requests, and the messages that some of them need first."""

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from zaqar_lite.bench.connection import Script, StreamConnection, Tally

CLAIMED = re.compile(rb'"href": ?"[^"]*/messages/([^"?]+)\?claim_id=([^"]+)"')
_NEXT = re.compile(rb'"href": ?"([^"]*[?&]marker=[^"]*)"')
_BODY_BYTES = 200


@dataclass(slots=True)
class Target:
    """The server and client of a run, and the queue, which is a new one for every run."""

    host: str
    port: int
    path: str
    keys: bool
    headers: str
    queue: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex}")
    sent: int = 0

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Write a request to a path below the queue."""
        head = (
            f"{method} {self.path}/v2/queues/{self.queue}{path} HTTP/1.1\r\n"
            f"Host: {self.host}:{self.port}\r\n{self.headers}"
        )
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + (body or b"")

    async def connect(self) -> StreamConnection:
        """Open a connection for a task."""
        return await StreamConnection.open(self.host, self.port)

    def keyed(self, request: bytes) -> bytes:
        """Add a fresh Idempotency-Key to a post, when keys were asked for."""
        if not self.keys:
            return request
        self.sent += 1
        first, rest = request.split(b"\r\n", 1)
        return first + b"\r\nIdempotency-Key: %s-%d\r\n" % (self.queue.encode(), self.sent) + rest


def message_body(count: int) -> bytes:
    """A post of `count` messages of 200 bytes each."""
    text = "x" * (_BODY_BYTES - 2)
    return json.dumps({"messages": [{"body": text, "ttl": 3600}] * count}).encode()


def post(target: Target, tally: Tally, batch: int) -> Script:
    """Post batches for ever."""
    prepared = target.request("POST", "/messages", message_body(batch))
    while True:
        status, _ = yield target.keyed(prepared)
        if status == 201:
            tally.messages += batch


def get(target: Target, tally: Tally) -> Script:
    """Post one message, then get it for ever."""
    _, body = yield target.request("POST", "/messages", message_body(1))
    message_id = json.loads(body)["resources"][0].rsplit("/", 1)[1]
    prepared = target.request("GET", f"/messages/{message_id}")
    while True:
        status, _ = yield prepared
        if status == 200:
            tally.messages += 1


def browse(target: Target, tally: Tally) -> Script:
    """List the queue page by page, again and again."""
    first = target.request("GET", "/messages?limit=20&echo=true")
    request, queue = first, f"/v2/queues/{target.queue}".encode()
    while True:
        _, body = yield request
        tally.messages += body.count(b'"age"')
        following = _NEXT.search(body)
        if following is None:
            request = first
        else:
            path = following.group(1).split(queue, 1)[1].decode()
            request = target.request("GET", path)


def claim(target: Target, tally: Tally, limit: int) -> Script:
    """Claim up to `limit` messages and delete them, until the queue is empty."""
    prepared = target.request("POST", f"/claims?limit={limit}", b'{"ttl": 300, "grace": 60}')
    while True:
        status, body = yield prepared
        if status == 204:
            return
        held = CLAIMED.findall(body)
        if not held:
            continue
        claim_id = held[0][1].decode()
        ids = [message_id.decode() for message_id, _ in held]
        if len(ids) == 1:
            path = f"/messages/{ids[0]}?claim_id={claim_id}"
        else:
            path = f"/messages?ids={','.join(ids)}&claim_ids={claim_id}"
        status, _ = yield target.request("DELETE", path)
        if status == 204:
            tally.messages += len(ids)


def cycle(target: Target, tally: Tally) -> Script:
    """Post one, claim one, delete it, for ever."""
    posting = target.request("POST", "/messages", message_body(1))
    claiming = target.request("POST", "/claims?limit=1", b'{"ttl": 300, "grace": 60}')
    while True:
        yield target.keyed(posting)
        _, body = yield claiming
        held = CLAIMED.search(body)
        if held is None:
            continue
        message_id, claim_id = held.group(1).decode(), held.group(2).decode()
        status, _ = yield target.request("DELETE", f"/messages/{message_id}?claim_id={claim_id}")
        if status == 204:
            tally.messages += 1


def fill(target: Target, count: int) -> Script:
    """Post `count` messages, a hundred at a time."""
    for start in range(0, count, 100):
        body = message_body(min(100, count - start))
        status, answer = yield target.request("POST", "/messages", body)
        if status != 201:
            raise RuntimeError(f"filling the queue was refused: {status} {answer[:200]!r}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of run: how a connection's script is made, and how many messages must be there first.

    Those without a script are measured by modules of their own.
    """

    name: str
    description: str
    script: Callable[[Target, Tally], Script] | None = None
    filled_per_second: int = 0
    filled: int = 0


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("post1", "post one message of 200 bytes", partial(post, batch=1)),
        Scenario("post20", "post twenty messages of 200 bytes", partial(post, batch=20)),
        Scenario("post100", "post a hundred messages of 200 bytes", partial(post, batch=100)),
        Scenario("get1", "get one message by its id", get),
        Scenario("list20", "list a queue of 2,000 by pages of twenty", browse, filled=2_000),
        Scenario("claim1", "claim one message and delete it", partial(claim, limit=1), 6_000),
        Scenario("claim20", "claim twenty and delete them", partial(claim, limit=20), 30_000),
        Scenario("cycle", "post one, claim one, delete it", cycle),
        Scenario("webhook", "post one, until a subscriber has it; so many (connections) at a time"),
        Scenario("webhook20", "post twenty, until a subscriber has them, likewise"),
        Scenario("pickup", "post one, until one of so many waiting claims (connections) has it"),
    )
}

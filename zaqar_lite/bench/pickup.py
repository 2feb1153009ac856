"""How long a message waits for a claim that waits for it: the scenario `pickup`.

Workers claim with `wait`, delete what they get and claim again; a poster posts one message, waits
until a worker has it, and posts the next after a random pause. A pickup is the time from the answer
to the post to the answer to the claim, 0 where the claim's came first. A server that does not know
`wait` is asked once a second, as the SDK asks it.
"""

import asyncio
import json
import random
import time

from zaqar_lite.bench.connection import Tally
from zaqar_lite.bench.scenarios import CLAIMED, Target, message_body

_WAIT = 20
_POLL = 1.0
_LEAST_PAUSE, _LONGEST_PAUSE = 0.01, 0.03
"""Seconds between a pickup and the next post: the worker has long been waiting again."""


async def measure(
    target: Target,
    post_to: Target,
    workers: int,
    tally: Tally,
    *,
    rate: float | None,
    until: float,
) -> None:
    """Post and pick up until the instant `until`; the latencies go into `tally`.

    Raises:
        OSError: a server closed a connection.
    """
    run = _Run(target, tally, until)
    working = [asyncio.create_task(run.work()) for _ in range(workers)]
    posting = asyncio.create_task(run.post(post_to, workers, rate))
    try:
        await asyncio.gather(posting, *working)
    finally:
        for task in (posting, *working):
            task.cancel()
        await asyncio.gather(posting, *working, return_exceptions=True)


class _Run:
    """What the poster and the workers of a run share."""

    def __init__(self, target: Target, tally: Tally, until: float) -> None:
        self._target = target
        self._tally = tally
        self._until = until
        self._posted: dict[bytes, float] = {}
        self._taken: dict[bytes, float] = {}
        self._picked_up = asyncio.Event()
        self._over = False

    async def post(self, target: Target, workers: int, rate: float | None) -> None:
        """Post one message at a time; at the end one for each worker, so that no worker waits."""
        line = await target.connect()
        request = target.request("POST", "/messages", message_body(1))
        due = time.perf_counter()
        while time.perf_counter() < self._until:
            self._picked_up.clear()
            status, body, at = await line.ask(request)
            if status == 201:
                name = json.loads(body)["resources"][0].rsplit("/", 1)[1].encode()
                self._posted[name] = at
                self._match(name)
                await self._picked_up.wait()
            else:
                self._tally.refused[status] += 1
            due += 0 if rate is None else 1 / rate
            pause = random.uniform(_LEAST_PAUSE, _LONGEST_PAUSE)  # noqa: S311 - spreads posts
            await asyncio.sleep(pause if rate is None else due - time.perf_counter())
        self._over = True
        await line.ask(target.request("POST", "/messages", message_body(workers)))
        line.close()

    async def work(self) -> None:
        """Claim one message, delete it, and again, until the run is over."""
        line = await self._target.connect()
        path = f"/claims?limit=1&wait={_WAIT}"
        request = self._target.request("POST", path, b'{"ttl": 300, "grace": 60}')
        while not self._over:
            asked = time.perf_counter()
            status, body, at = await line.ask(request)
            held = CLAIMED.search(body)
            if held is not None:
                name, claim_id = held.groups()
                self._taken[name] = at
                self._match(name)
                path = f"/messages/{name.decode()}?claim_id={claim_id.decode()}"
                await line.ask(self._target.request("DELETE", path))
                continue
            if status != 204:
                self._tally.refused[status] += 1
            if at - asked < _POLL:
                await asyncio.sleep(_POLL - (at - asked))
        line.close()

    def _match(self, name: bytes) -> None:
        """Count the pickup of a message once both answers are there."""
        if self._over or name not in self._posted or name not in self._taken:
            return
        taken = self._taken.pop(name)
        self._tally.count(max(0.0, taken - self._posted.pop(name)), taken)
        self._tally.messages += 1
        self._picked_up.set()

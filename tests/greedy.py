"""A tenant that sends the largest of every request that is allowed, without pausing."""

import asyncio
import json
import multiprocessing
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx

POST_SIZE = 262_144
POST_COUNT = 5_000
METADATA_SIZE = 65_536
FILTERS = 100
COPIES = 2_000
_CLIENTS = 3

Step = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


class Greedy:
    """Runs the tenant in a process of its own. A context manager.

    `share` scales the largest sizes down, for a store that is slow by nature. `crowd` is a project
    with many queues, which the tenant lists.
    """

    def __init__(self, url: str, crowd: str, share: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(url, crowd, share, theirs), daemon=True)

    def __enter__(self) -> "Greedy":
        self._process.start()
        if not self._ours.poll(120):
            raise RuntimeError("the greedy tenant could not create its queues in 120 s")
        self._ours.recv()
        return self

    def go(self) -> None:
        """Let the tenant begin."""
        self._ours.send("go")

    def stop(self) -> Counter[str]:
        """Let the tenant end; return how often each step was answered with each status."""
        self._ours.send("stop")
        done: Counter[str] = self._ours.recv()
        return done

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _run(url: str, crowd: str, share: float, pipe: Connection) -> None:
    os.nice(10)  # it must not take CPU from the server and from the measuring process
    asyncio.run(_main(url, crowd, share, pipe))


async def _main(url: str, crowd: str, share: float, pipe: Connection) -> None:
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": f"greedy-{uuid.uuid4().hex[:8]}"}
    done: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as http:
        steps = make_steps(crowd, share)
        if not await make_queues(http, share):
            del steps["fan out"]
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        work = [asyncio.create_task(_work(http, steps, done)) for _ in range(_CLIENTS)]
        await asyncio.to_thread(pipe.recv)
        for task in work:
            task.cancel()
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                done[f"ended by {outcome!r}"] += 1
    pipe.send(done)


async def make_queues(http: httpx.AsyncClient, share: float) -> bool:
    """Create the queues that receive copies; return whether the store knows filters."""
    for number in range(max(1, int(FILTERS * share))):
        path = f"/v2/queues/copies-{number}"
        answer = await http.put(path, json={"_filter": "queue = 'source'"})
        if answer.status_code == 400:
            return False
        answer.raise_for_status()
    return True


async def _work(http: httpx.AsyncClient, steps: dict[str, Step], done: Counter[str]) -> None:
    while True:
        names = list(steps)
        random.shuffle(names)
        for name in names:
            began = time.monotonic()
            answer = await steps[name](http)
            done[f"{name} {answer.status_code}"] += 1
            done[f"{name} ms"] += round((time.monotonic() - began) * 1000)


def make_steps(crowd: str, share: float) -> dict[str, Step]:
    """The steps by name. Each sends one request, of the largest size of its kind."""
    queue = "/v2/queues/greedy"
    size = int(POST_SIZE * share)
    one = _messages([{"body": "x" * (size - 100)}])
    count = max(1, int(POST_COUNT * share))
    many = _messages([{"body": "x" * (size // count - 20)}] * count)
    keys = [
        {"body": 1, "idempotency_key": uuid.uuid4().hex * 4} for _ in range((size - 100) // 165)
    ]
    headers = {f"name-{number}": "v" * 240 for number in range(32)}
    labelled = [{"body": 1, "headers": headers} for _ in range(max(1, size // 8_300 - 1))]
    deep = _messages([{"body": None}]).replace(b"null", b"[" * 500 + b"]" * 500)
    metadata = json.dumps({f"key-{n}": "v" * 100 for n in range(int(METADATA_SIZE * share) // 130)})
    copied = _messages([{"body": 1}] * max(1, int(COPIES / FILTERS * share)))
    claim = b'{"ttl": 43200, "grace": 43200}'
    purge = b'{"resource_types": ["messages", "subscriptions"]}'

    def send(method: str, path: str, content: bytes | str | None = None) -> Step:
        return lambda http: http.request(method, path, content=content)

    def look(path: str) -> Step:
        return lambda http: http.get(path, headers={"X-Project-ID": crowd})

    async def post_keys(http: httpx.AsyncClient) -> httpx.Response:
        for message in keys:
            message["idempotency_key"] = uuid.uuid4().hex * 4
        return await http.post(f"{queue}/messages", content=_messages(keys))

    return {
        "post one large": send("POST", f"{queue}/messages", one),
        "post many": send("POST", f"{queue}/messages", many),
        "post many to drop": send("POST", "/v2/queues/dropped/messages", many),
        "post keys": post_keys,
        "post headers": send("POST", f"{queue}/messages", _messages(labelled)),
        "post deep": send("POST", f"{queue}/messages", deep),
        "fan out": send("POST", "/v2/queues/source/messages", copied),
        "claim": send("POST", f"{queue}/claims?limit=20", claim),
        "list": send("GET", f"{queue}/messages?limit=20&echo=true&include_claimed=true"),
        "list others'": send("GET", f"{queue}/messages?limit=20"),
        "pop": send("DELETE", f"{queue}/messages?pop=20"),
        "stats": send("GET", f"{queue}/stats"),
        "ranges": send("GET", f"{queue}/ranges?count=1000"),
        "metadata": send("PUT", f"/v2/queues/{'m' * 64}", metadata),
        "queues": look("/v2/queues?limit=20&detailed=true&with_count=true"),
        "queues by name": look("/v2/queues?limit=20&name=never"),
        "queues by key": look("/v2/queues?limit=20&never=1"),
        "purge": send("POST", f"{queue}/purge", purge),
        "drop": send("DELETE", "/v2/queues/dropped"),
    }


def _messages(messages: list[dict[str, object]]) -> bytes:
    return json.dumps({"messages": messages}, separators=(",", ":")).encode()

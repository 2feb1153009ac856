"""A tenant that sends the largest of every request that is allowed, without pausing."""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

POST_SIZE = 262_144
POST_COUNT = 5_000
METADATA_SIZE = 65_536
FILTERS = 100
COPIES = 2_000
_CLIENTS = 3

Step = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


@asynccontextmanager
async def being_greedy(url: str, crowd: str, share: float) -> AsyncIterator[Counter[str]]:
    """Send all kinds of requests until the block ends; count how each kind was answered.

    `share` scales the largest sizes down, for a store that is slow by nature. `crowd` is a project
    with many queues, which the tenant lists.
    """
    headers = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": f"greedy-{uuid.uuid4().hex[:8]}"}
    answered: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as http:
        steps = make_steps(crowd, share)
        if not await make_queues(http, share):
            del steps["fan out"]

        async def work() -> None:
            while True:
                for name in random.sample(list(steps), len(steps)):
                    answered[f"{name} {(await steps[name](http)).status_code}"] += 1

        async with running(*(work() for _ in range(_CLIENTS))):
            yield answered


@asynccontextmanager
async def running(*work: Awaitable[None]) -> AsyncIterator[None]:
    """Run work that goes on for ever beside the block; an error of it is raised after the block."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if end is not None and not isinstance(end, asyncio.CancelledError):
                raise end


async def make_queues(http: httpx.AsyncClient, share: float) -> bool:
    """Create the queues that receive copies; return whether the store knows filters."""
    for number in range(max(1, int(FILTERS * share))):
        path = f"/v2/queues/copies-{number}"
        answer = await http.put(path, json={"_filter": "queue = 'source'"})
        if answer.status_code == 400:
            return False
        answer.raise_for_status()
    return True


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

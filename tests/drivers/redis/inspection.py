"""Look into Redis past the driver: what is stored, and whether it fits together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.contract.subject import QueueUnderTest
from zaqar_lite.storage.redis.keys import PREFIX

KEPT = {"queue", "sources", "names", "exposing", "visits", "intents"}
"""Kinds that have no expiry: the user's configuration, and indexes whose members are removed."""
STATES = ("ready", "waiting", "held", "lapsed")
"""Kinds of indexes, of which each message is in one."""


@contextmanager
def raw(url: str) -> Iterator[Any]:
    """A plain client of the server (untyped: redis-py's answers are unions of everything)."""
    if url.startswith("redis+cluster://"):
        client: Any = redis.RedisCluster.from_url(url.replace("+cluster", "").split(",")[0])
    else:
        client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()


def keys_by_tag(client: Any) -> dict[str, dict[str, bytes]]:
    """All of the driver's keys: tag -> kind -> key."""
    found: dict[str, dict[str, bytes]] = {}
    for key in client.scan_iter(match=f"{PREFIX}:*", count=1000):
        _, kind, tag = key.decode().split(":", 2)
        found.setdefault(tag[1 : tag.index("}")], {})[kind] = key
    return found


def check_queues(client: Any, queue: QueueUnderTest) -> None:
    """Hold all queues that are named after this one to the layout; no letter is on its way."""
    for tag, keys in keys_by_tag(client).items():
        if queue.ref.name in tag:
            assert "outbox" not in keys
            check_queue(client, tag, keys, queue.stores.clock.offset_ms)


def check_queue(client: Any, tag: str, keys: dict[str, bytes], offset_ms: int) -> None:
    """Hold one queue to the layout: nothing lives for ever, and all indexes agree."""
    check_lifetimes(client, keys, offset_ms)

    def members(kind: str) -> set[bytes]:
        return set(client.zrange(keys[kind], 0, -1)) if kind in keys else set()

    def table(kind: str) -> dict[bytes, bytes]:
        return dict(client.hgetall(keys[kind])) if kind in keys else {}

    messages, tracks, claims = table("messages"), table("tracks"), table("claims")
    states = [members(kind) for kind in STATES]
    assert set().union(*states) == set(messages), f"{tag}: a message without a state, or reverse"
    assert sum(map(len, states)) == len(messages), f"{tag}: a message in two states"
    assert members("expiry") == set(messages)
    assert members("due") == members("waiting")
    assert set(tracks) <= set(messages)
    grouped = {position for position, record in messages.items() if record[31] & 4}
    assert {member[-8:] for member in members("groups")} == grouped
    assert len(members("groups")) == len(grouped)
    assert set(table("ids").values()) <= set(messages)
    large = {
        one: int.from_bytes(record[-4:], "big")
        for one, record in messages.items()
        if record[31] & 8
    }
    assert {position: len(body) for position, body in table("bodies").items()} == large
    assert set(claims) == members("leases")
    assert set(table("keys")) == members("forgets")
    holds = {
        key: {claim[at : at + 8] for at in range(11, len(claim), 8)}
        for key, claim in claims.items()
    }
    assert all(holds.values()), f"{tag}: a claim that holds nothing"
    assert members("parked") <= members("held")
    assert set(table("attempts")) <= set(messages)
    for position in members("held") - members("parked"):
        assert position in holds[tracks[position][15:31]]
    deadline_of = dict(client.zrange(keys["expiry"], 0, -1, withscores=True)) if messages else {}
    for kind, positions in (
        ("tracks", set(tracks)),
        ("ids", set(table("ids").values())),
        ("attempts", set(table("attempts"))),
        ("groups", grouped),
        *((kind, members(kind)) for kind in (*STATES, "ranked", "due", "parked")),
    ):
        ends = client.pexpiretime(keys[kind]) + offset_ms if positions else 0
        latest = max((deadline_of[position] for position in positions), default=0)
        assert ends >= latest, f"{tag}: {kind} ends too early"
    deadlines = [
        score
        for kind in ("expiry", "leases", "due", "parked", "forgets")
        if kind in keys
        for _, score in client.zrange(keys[kind], 0, 0, withscores=True)
    ]
    if deadlines:
        visit = client.zscore(f"{PREFIX}:visits:{{*}}", tag)
        assert visit is not None, f"{tag}: the sweep does not know it"
        assert visit <= min(deadlines), f"{tag}: the sweep comes late"


def check_kind(client: Any, tag: str, keys: dict[str, bytes]) -> None:
    """Hold the records of one kind to the layout."""
    values = dict(client.hgetall(keys["values"])) if "values" in keys else {}
    fields = set(client.zrange(keys["fields"], 0, -1)) if "fields" in keys else set()
    ends = dict(client.zrange(keys["ends"], 0, -1, withscores=True)) if "ends" in keys else {}
    assert set(values) == fields, tag
    expected = {field: int.from_bytes(stored[8:14], "big") for field, stored in values.items()}
    assert ends == {field: end for field, end in expected.items() if end}, tag
    visit = client.zscore(f"{PREFIX}:visits:{{*kinds}}", tag)
    assert not ends or visit is not None, f"{tag}: the sweep does not know it"
    assert not ends or visit <= min(ends.values()), f"{tag}: the sweep comes late"


def check_lifetimes(client: Any, keys: dict[str, bytes], offset_ms: int) -> None:
    """Every key that messages and claims own expires, and not before what is in it."""
    latest = max(
        (
            score
            for kind in ("expiry", "leases", "due", "parked", "forgets")
            if kind in keys
            for _, score in client.zrange(keys[kind], -1, -1, withscores=True)
        ),
        default=0,
    )
    for kind, key in keys.items():
        if kind in KEPT:
            continue
        expires = client.pexpiretime(key)
        assert expires > 0, f"{key!r} lives for ever"
        if kind in ("messages", "expiry", "state"):
            assert expires + offset_ms >= latest, f"{key!r} ends before what is in it"

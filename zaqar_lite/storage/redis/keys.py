"""Names of keys: prefixed by kind, with a hash tag for each queue.

A queue's keys are `zl:<kind>:{<project>/<name>}`. The part in braces is what Redis Cluster hashes,
so that all keys of a queue are in one slot and one script may change them together. Project and
name are percent-encoded inside it: no user's text can hold a brace, a slash or a colon, so none can
end the tag early or reach another queue's keys. Indexes over queues have tags of their own.
"""

from functools import lru_cache
from urllib.parse import quote, unquote

from redis.crc import key_slot

from zaqar_lite.domain.models import QueueRef

PREFIX = "zl"
FAMILIES = {
    "queue": (
        *("queue", "state", "messages", "bodies", "expiry", "ready", "due", "waiting"),
        *("readiness", "tracks", "held", "claims", "leases", "lapsed", "parked", "attempts"),
        *("ids", "groups", "outbox", "keys", "forgets", "brought", "staged", "visits"),
    ),
    "project": ("names", "rates"),
    "everywhere": ("visits", "intents"),
    "kind": ("values", "fields", "ends", "counters"),
}
"""The kinds of keys that an operation is given, in this order: those of a queue (`call.lua`), of a
project, or of all queues (`queues.lua`), or of a kind of records (`records.lua`). The last one of a
queue is that of all queues: in a cluster it is in another slot, and is left out."""
_VISITS = f"{PREFIX}:visits:{{*}}".encode()


class Keys:
    """The keys of one queue, or of one index over queues, which share a hash tag."""

    __slots__ = ("in_slot", "on_one_server", "slot", "tag")

    def __init__(self, tag: str, family: str) -> None:
        self.tag = tag
        self.slot: int = key_slot(f"{{{tag}}}".encode())
        keys = tuple([self.key(kind) for kind in FAMILIES[family]])
        self.in_slot = keys[:-1] if family == "queue" else keys
        self.on_one_server = (*keys[:-1], _VISITS) if family == "queue" else keys

    def key(self, kind: str) -> bytes:
        """The key of one kind."""
        return f"{PREFIX}:{kind}:{{{self.tag}}}".encode()


def encode(text: str) -> str:
    """Write a user's text so that nothing in it means anything in a key."""
    return quote(text, safe="", errors="surrogatepass")


def tag_of(queue: QueueRef) -> str:
    """The hash tag of a queue, without the braces."""
    return f"{encode(queue.project)}/{encode(queue.name)}"


def ref_of(tag: str) -> QueueRef:
    """The queue that a hash tag stands for."""
    project, name = (unquote(part, errors="surrogatepass") for part in tag.split("/"))
    return QueueRef(project, name)


@lru_cache(maxsize=4_096)
def keys_of(queue: QueueRef) -> Keys:
    """The keys of a queue."""
    return Keys(tag_of(queue), "queue")


@lru_cache(maxsize=1_000)
def keys_of_project(project: str) -> Keys:
    """The keys of the indexes of a project."""
    return Keys(encode(project), "project")


EVERYWHERE = Keys("*", "everywhere")
"""The keys of the indexes over all queues. No encoded name is a bare asterisk."""

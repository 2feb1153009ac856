"""The Redis driver: one Lua script for each operation, all keys of a queue in one slot.

Data layout. Positions, ids and claim ids are raw bytes; `codec.py` says what is in a record, a
track and a claim. A queue has these keys, `zl:<kind>:{<project>/<name>}`:

    queue     hash    the queue's record: version, metadata (JSON), exposing
    state     hash    last position, how long the other keys must live, the sweep's next visit
    messages  hash    position -> record: one packed string for each message
    tracks    hash    position -> track: what changes; only of messages once claimed or moved
    expiry    zset    position by deadline, of every message
    ready     zset    ready positions; all scores 0, so that the order is that of positions
    ranked    zset    ready positions whose priority is not the default one, by priority
    aside     zset    the same, by position
    due       zset    delayed positions by `d`
    waiting   zset    the same, by position
    held      zset    positions held by claims or parked, by position
    parked    zset    those that are parked, by the end of their wait
    lapsed    zset    positions whose lease has lapsed and is not ended yet, by position
    claims    hash    claim id -> ttl, start, positions
    leases    zset    claim id by a moment before which no lease of its messages ends
    attempts  hash    position -> its hand-outs that have ended; only of messages that have some
    ids       hash    id -> position of dead letters, whose ids do not tell their position here
    groups    zset    group and position, of the messages that are in one
    keys      hash    idempotency key -> deadline, digest, ids
    forgets   zset    idempotency key by deadline
    outbox    list    dead letters on their way to other queues
    staged    hash    the parts of a post that is committed and not whole yet (`posting.py`)
    inbox     hash    source -> number of the last letter that came from it
    sources   set     queues whose dead-letter queue this is

A message is in `messages` and `expiry`, and in exactly one of ready (or ranked and aside), due and
waiting, held, and lapsed. A claim reads the head of `ready` and nothing else: what is delayed or
claimed is in other indexes. Listing merges the indexes that it was asked for.

Each message's lease is in its track. Any script that meets a lapsed lease moves its message from
`held` to `lapsed`; claims, pops and the sweep, which know the queue's policy, end it there.

Scripts tell what becomes ready on the channel `zl:news:{<project>/<name>}` (`news.py`).

Records that are no queue's are in a slot for each kind (`kind_records.py`).

Over all queues, in slots of their own: `names` of a project, and `exposing`, `visits` (when the
sweep must look at which queue) and `intents` (changes of records under way) under `{*}`.

Every key of a queue but `queue` and `sources`, which are the user's configuration, has an EXPIREAT
that is never before the last deadline in it (`parts/life.lua`), so nothing lives for ever even if
no sweep ever runs; visibility is decided by the deadlines alone.
"""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.redis.address import parse
from zaqar_lite.storage.redis.connection import Connection
from zaqar_lite.storage.redis.management import RedisManagementStore
from zaqar_lite.storage.redis.messages import RedisMessageStore


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores of a Redis URI, over one connection, not yet opened.

    Raises:
        ConfigurationError: the URI is wrong; says where and how to write it.
    """
    connection = Connection(parse(uri))
    return (
        RedisMessageStore(connection, clock, options),
        RedisManagementStore(connection, clock),
    )

"""The Redis driver: one Lua function for each operation, all keys of a queue in one slot.

Data layout. Positions, ids and claim ids are raw bytes; `codec.py` says what is in a record, a
track and a claim. A queue has the keys `zl:<kind>:{<project>/<name>}`; `scripts/call.lua` says
what each kind is. The set `sources` has the queues whose dead-letter queue this one is.

A message is in `messages` and `expiry`, and in exactly one of ready, due and waiting, held, and
lapsed. A claim reads the head of `ready` and nothing else: what is delayed or
claimed is in other indexes. Listing merges the indexes that it was asked for.

Each message's lease is in its track. Any script that meets a lapsed lease moves its message from
`held` to `lapsed`; claims, pops and the sweep, which know the queue's policy, end it there.

Scripts tell what becomes ready on the channel `zl:readiness:{<project>/<name>}` (`readiness.py`).

Records that are no queue's are in a slot for each kind (`kind_records.py`).

Over all queues, in slots of their own: `names` of a project, and `exposing`, `visits` (when the
sweep must look at which queue) and `intents` (changes of records under way) under `{*}`; in a
cluster `intents` under `{**}`, too.

Every key of a queue but `queue` and `sources`, which are the user's configuration, has an EXPIREAT
that is never before the last deadline in it (`finish`), so nothing lives for ever even if no sweep
ever runs; visibility is decided by the deadlines alone.
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
    connection = Connection(parse(uri), clock)
    return RedisMessageStore(connection, options), RedisManagementStore(connection)

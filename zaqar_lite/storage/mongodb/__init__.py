"""The MongoDB driver: five collections, one transaction a post, guarded updates for the rest.

Data layout. Instants are BSON dates of the server's clock (`$$NOW`), durations milliseconds; the
key of a queue is `project/name` (a name has no slash). `<prefix>` is a setting, `zaqar_` at first.
`indexes.py` tells which query each index serves.

`<prefix>queues`, one document per queue name that was used lately; `_id` is the queue's key

    p, n     project and name                      k   the counter: position of the last message
    m        the record's metadata as JSON text;   b   birth: messages at or below it do not exist
             absent without a record               g   the life: keys of others do not exist
    v        the record's version, kept over its   u   messages up to here are still to be cleared
             deletion so that it only grows        f   upper bound of the live messages, which are
    x        exposing, only when true                  not counted again before fu
    t        key of the dead-letter queue          y   the same for idempotency keys, before yu
    i        who created the record                at  when the counter was moved last
    z        dropped at (tombstone; absent while in use)

`<prefix>messages`; `q` is the queue's key

    _id  message id             s   0 ready, 1 delayed, 2 claimed, 4 popped, 5 parked
    k    position               w   wakes at: when 1 is due (`d`), 2 and 4 lapse, 5 has waited
    n    claim counter          cid, cu, ct, cs  last claim, its client, ttl and start
    f    failure counter        ca, l  when it was handed out last, and how that ended (null: not)
    b    body, byte for byte    z   its size  t  ttl    e  expires    c  created
    u    client id              d   delayed until: the spec's `d`; never read on a normal queue
    h    headers [[name, text]] o   origin of a dead letter
    a    attempts, each a list of its fields    x   mark of the call that changed it last
    g    the group that `h` names

Popped messages (4) are in no queue any more: their pop is about to delete them.

`<prefix>keys`, idempotency keys; `_id` is kind, key and queue

    q  queue    g  the queue's life    e  end of the window    d  digest of what was posted
    l  ids of the messages (one for a message key)

`<prefix>writers`, the sessions of open transactions; `_id` is a session's, `at` its last heartbeat

`<prefix>records`, records of any kind but queues; `_id` is kind, project and name

    k, p, n  kind, project, name    v  version, which a deletion raises too
    b  value, byte for byte         i  the change that made it so
    e  expires; the year 9999 for what stays
    z  deleted at (tombstone: it has no b and no e, and keeps the version)

A post moves the counter and inserts above it in one transaction. The counter's document is locked
until the commit, so positions become visible in their order, and no reader passes a slow writer.
Posts that wait for one queue in a process share one transaction. A dead letter enters its target in
the same way. An operation of many documents that is not a transaction carries a guard that makes a
second run harmless.

Shard by ranges of the queue's key, with the same zones: `api-ref/source/store-mongodb.rst`.
"""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.mongodb.connection import Connection, read_configuration
from zaqar_lite.storage.mongodb.management import MongoManagementStore
from zaqar_lite.storage.mongodb.posting import MongoMessageStore


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one connection pool, not yet opened.

    Raises:
        ConfigurationError: the URI or an option is wrong.
    """
    connection = Connection(read_configuration(uri, options.extra), clock)
    return MongoMessageStore(connection, options), MongoManagementStore(connection)

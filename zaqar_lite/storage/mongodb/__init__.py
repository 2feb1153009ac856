"""The MongoDB driver: three collections, guarded single-document updates, no transaction.

Data layout. Instants are BSON dates of the server's clock (`$$NOW`), durations milliseconds; the
key of a queue is `project/name` (a name has no slash). `<prefix>` is a setting, `zaqar_` at first.

`<prefix>queues`, one document per queue name that was used lately; `_id` is the queue's key

    p, n     project and name                      k   the counter: position of the last message
    m        the record's metadata as JSON text;       that readers may see
             absent without a record               b   birth: messages at or below it belong to an
    v        the record's version, kept over its       earlier life of the name and do not exist
             deletion so that it only grows        f   floor: at most k - f messages are live
    x        exposing, only when true              y   at most so many idempotency keys are live
    t        key of the dead-letter queue          z   dropped at (tombstone; absent while in use)
    i        who created the record                mv  moves under way into this queue [{t, at}]

    _id       every operation: the record's version, counter, birth and `$$NOW` in one read
    name      (p, n)            list and count a project's queues
    source    (t, n) partial    which queues have this dead-letter queue
    exposing  (x) partial       queues that still hand out what waited
    moves     (mv.at) partial   moves that a crash cut short
    gone      (z) TTL           forget a tombstone after a day

`<prefix>messages`, messages and claims; `q` is the queue's key

    _id  message id             s   0 ready, 1 delayed, 2 claimed, 3 a claim's record, 4 popped,
                                    5 staged: of a keyed post, and to be seen by nobody yet
    k    position               w   wakes at: when 1 is due (`d`) and when 2 lapses (claim's end)
    p    priority               n   claim counter          cid, cu  last claim, its client
    b    body, byte for byte    t   ttl       e  expires    c  created
    u    client id              d   delayed until: the spec's `d`; never read on a normal queue
    h    headers [[name, text]] o   origin of a dead letter
    r, at  (keyed) which post brings it in, since when    g  (claim, keyed) birth of its queue

    _id       read, edit, delete and take by id
    position  unique (q, k) partial: k   list everything; place at the end
    state     (q, s, k)                  list by state; purge claims
    ready     (q, s, p, k) partial: s=0  candidates of a claim: nothing else is in it
    wake      (q, s, w) partial: w       due delays and lapsed claims of a queue; what is delayed
    due       (s, w) partial: w          the same over all queues, for the sweep
    claim     (q, cid) partial: cid      what a claim holds, and its record
    expiry    (e) TTL 0                  the broom

`<prefix>keys`, idempotency keys; `_id` is kind, key and queue

    q  queue    g  the queue's birth    e  end of the window    r  the post that made it
    l  ids of the messages (one for a message key): staged before, so that the key can decide

    _id       remember, look up            queue   (q) count and drop
    expiry    (e) TTL 0                    the broom

The counter is the point of commit. A writer reads it, inserts above it under the unique index and
then moves it by compare-and-set; nobody reads above the counter, so no reader can pass a slow
writer. A writer whose compare-and-set fails may stand where readers have been: it takes its
messages to the end again before it answers. A dead letter enters its target in the same way.

Shard key: {q: 1} for messages and keys, {_id: 1} for queues. Every query but the sweep's has it.
"""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import ManagementStore, MessageStore
from zaqar_lite.storage.mongodb.configuration import read_configuration
from zaqar_lite.storage.mongodb.connection import Connection
from zaqar_lite.storage.mongodb.management import MongoManagementStore
from zaqar_lite.storage.mongodb.messages import MongoMessageStore


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one connection pool, not yet opened.

    Raises:
        ConfigurationError: the URI or an option is wrong.
    """
    connection = Connection(read_configuration(uri, options.extra), clock)
    return MongoMessageStore(connection, options), MongoManagementStore(connection)

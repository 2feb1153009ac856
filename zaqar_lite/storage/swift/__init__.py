"""The Swift driver: queues in object storage, with the lock outside.

Every queue has one container, PREFIX.queue.HASH.NAME (the hash is of the project). In it:

    m/POSITION/ID   a message. The name never changes and sorts by position (16 hex digits).
                    Content: a line of JSON with what never changes (created, client, headers,
                    origin), and then the body as it was posted.
                    Content type: what does change, and what a listing must show (`layout.State`).
    a/POSITION/ID   the history of the message m/POSITION/ID: e expires at, with the message;
                    content: its attempts
    l/tail          what holds for the whole queue (`tail.Tail`); while a post is being written, the
                    content tells how to finish or undo it
    c/CLAIM         a claim: s started at, t ttl, x: no lease ends later;
                    content: the names it holds
    k/m/HASH, k/b/HASH   an idempotency key of a message or a batch: x forgotten at, h digest of
                    what was posted with it; content: ids
    i/ID            the position of a message that was moved here, which its id does not tell

PREFIX.records.HASH has a project's queue records, =NAME: v version, dlq dead-letter queue; the
content is the record. PREFIX.exposing has an empty object for each queue whose delay was switched
off while messages waited. PREFIX.kind.KIND has the records of any other kind, PROJECT!!NAME, where
what sorts below a digit is written ! and two hex digits: v version, e expires at, gone when it was
deleted; the content is a line of JSON with project and name, and then the value.

A content type is the only thing of ours that a listing shows, and a POST changes it in one
request without touching the content. So one listing finds what is ready, and only what is handed
out is read and marked, each object once and all in parallel. The listing proposes and the object
decides: before anything is changed, the object is read with X-Newest.

Swift has no compare-and-swap. Whatever reads and then writes holds the queue's lock, in this
process or, with a coordination URL, through tooz (see `locks.py`). The clock that decides is the
lock holder's, checked against Swift's Date. X-Delete-At, five minutes late, only cleans up.
"""

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.swift import options as swift_options
from zaqar_lite.storage.swift.backend import Backend
from zaqar_lite.storage.swift.changing import Changing
from zaqar_lite.storage.swift.management import SwiftManagementStore
from zaqar_lite.storage.swift.posting import Posting
from zaqar_lite.storage.swift.sweeping import Sweeping


class SwiftMessageStore(Posting, Changing, Sweeping):
    """Messages and claims as objects."""


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one connection; `uri` is told in `options.py`.

    Raises:
        ConfigurationError: the URI or an option is wrong, or several workers lack a coordination
            URL.
    """
    backend = Backend(swift_options.read(uri, options), options, clock)
    return SwiftMessageStore(backend), SwiftManagementStore(backend)

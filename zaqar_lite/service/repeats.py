"""Whether a post repeats one that was stored: found out without storing anything.

The store is asked by posts that it always refuses, of two messages which one new key stands for. It
compares the key of the whole post first, then those of the messages in their order, and names the
first that stands for something else.
"""

from collections.abc import Sequence
from secrets import token_bytes, token_hex

from zaqar_lite.domain.errors import KeyReused, LimitReached
from zaqar_lite.domain.idempotency import DIGEST_SIZE
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage
from zaqar_lite.service.drafts import Draft
from zaqar_lite.storage.base import MessageStore

MOST = 20
"""Messages with keys of their own that are asked for, each in a call; more count as new."""


async def is_repeated(
    messages: MessageStore,
    queue: QueueRef,
    drafts: Sequence[Draft],
    *,
    client_id: str,
    batch_key: str | None,
) -> bool:
    """Tell whether a post would store nothing: its key is known, or those of all its messages."""
    if batch_key is not None and await _is_known(messages, queue, client_id, batch=batch_key):
        return True
    keys = {draft.idempotency_key for draft in drafts}
    if len(keys) > MOST:
        return False
    for key in keys:
        if key is None or not await _is_known(messages, queue, client_id, message=key):
            return False
    return True


async def _is_known(
    messages: MessageStore,
    queue: QueueRef,
    client_id: str,
    *,
    batch: str | None = None,
    message: str | None = None,
) -> bool:
    new = token_hex(16)
    asked = [] if message is None else [_standing_for(message)]
    refused = [*asked, _standing_for(new), _standing_for(new)]
    whole = None if batch is None else IdempotencyKey(batch, token_bytes(DIGEST_SIZE))
    try:
        await messages.post(queue, refused, client_id=client_id, batch_key=whole, version=None)
    except KeyReused as exc:
        return exc.index != len(asked) + 1
    except LimitReached:
        return False
    return True  # a key that was stored without a digest stands for anything


def _standing_for(key: str) -> NewMessage:
    """A message that a key never stood for."""
    return NewMessage(b"0", 60_000, 0, IdempotencyKey(key, token_bytes(DIGEST_SIZE)))

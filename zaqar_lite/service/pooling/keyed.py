"""Posts with keys that another store may know: it has the keys of a queue that was moved out."""

from collections.abc import Awaitable, Callable, Sequence

from zaqar_lite.domain.errors import KeyReused, Unavailable
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, Posted, Recalled


async def post_unknown(
    messages: Sequence[NewMessage],
    batch_key: IdempotencyKey | None,
    known: Recalled,
    post: Callable[..., Awaitable[Sequence[Posted]]],
) -> Sequence[Posted]:
    """Post what stands behind none of the keys that are `known`; answer for all messages.

    A store remembers a batch's key with all messages of the batch or not at all: a part of it is
    told from a repeat by the keys of its own messages.

    Raises:
        KeyReused: a key stands for something else.
        Unavailable: a part is known, and a message of the rest has no key but the batch's.
    """
    if batch_key is not None and known.batch is not None:
        if not known.batch.matches(batch_key):
            raise KeyReused(None)
        return [Posted(one, duplicate=True) for one in known.batch.ids]
    answers: dict[int, Posted] = {}
    for index, message in enumerate(messages):
        key = message.idempotency_key
        found = None if key is None else known.messages.get(key.text)
        if key is not None and found is not None and not found.matches(key):
            raise KeyReused(index)
        if found is not None:
            answers[index] = Posted(found.ids[0], duplicate=True)
    rest = {index: one for index, one in enumerate(messages) if index not in answers}
    if answers and batch_key is not None:
        if any(one.idempotency_key is None for one in rest.values()):
            raise Unavailable("Messages of this post are known, and their queue has just moved.")
        batch_key = None
    try:
        posted = await post([*rest.values()], batch_key=batch_key) if rest else ()
    except KeyReused as exc:
        raise KeyReused(None if exc.index is None else [*rest][exc.index]) from exc
    answers |= zip(rest, posted, strict=True)
    return [answers[index] for index in range(len(messages))]

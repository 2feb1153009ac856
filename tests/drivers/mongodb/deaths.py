"""Callers that end as by kill -9, or stop for a while, between two commands to the server."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.contract.subject import QueueUnderTest
from zaqar_lite.storage.mongodb.posting import MongoMessageStore

_WRITES = (
    "insert_many", "bulk_write", "update_one", "update_many", "delete_many", "find_one_and_update"
)  # fmt: skip


class DiedError(Exception):
    """What a planted death raises."""


def driver(queue: QueueUnderTest) -> MongoMessageStore:
    """The driver behind a queue."""
    return cast(MongoMessageStore, queue.stores.messages)


async def dies(owner: object, name: str, action: Callable[[], Awaitable[object]]) -> None:
    """Run `action`, which ends as by kill -9 right before `owner.name` is called."""

    async def die(*_: object, **__: object) -> None:
        raise DiedError

    with patch.object(owner, name, die), pytest.raises(DiedError):
        await action()


@contextmanager
def before_writes(queue: QueueUnderTest, step: Callable[[int], Awaitable[None]]) -> Iterator[None]:
    """Await `step(number)` before each command with which this writer changes the database."""
    connection, number = driver(queue)._connection, 0

    def planted(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def stopped(*args: object, **kwargs: object) -> object:
            nonlocal number
            number += 1
            await step(number)
            return await write(*args, **kwargs)

        return stopped

    with ExitStack() as stack:
        for collection in (connection.queues, connection.messages, connection.keys):
            for name in _WRITES:
                write = planted(getattr(collection, name))
                stack.enter_context(patch.object(collection, name, write))
        yield

"""Writers that end as by kill -9, or stop for a while, between two commands to the server."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.contract.pausing import Pause
from tests.contract.subject import QueueUnderTest
from zaqar_lite.storage.mongodb.messages import MongoMessageStore

_WRITES = (
    "insert_many", "bulk_write", "update_one", "update_many", "delete_many", "find_one_and_update"
)  # fmt: skip


class DiedError(Exception):
    """What a planted death raises."""


def driver(queue: QueueUnderTest) -> MongoMessageStore:
    """The driver behind a queue."""
    return cast(MongoMessageStore, queue.stores.messages)


def impatient(queue: QueueUnderTest) -> QueueUnderTest:
    """The queue, by a writer that does not wait for another's commit."""
    driver(queue)._placing.patience = 0
    return queue


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


@contextmanager
def stopped_at(
    queue: QueueUnderTest, pause_at: int, *, die_at: int | None = None
) -> Iterator[Pause]:
    """Stop a writer before the write of this number, and end it before a later one."""
    pause = Pause()

    async def step(number: int) -> None:
        if number == pause_at:
            await pause._stop()
        if number == die_at:
            raise DiedError

    with before_writes(queue, step):
        yield pause


@contextmanager
def unsteady(queue: QueueUnderTest, chance: random.Random) -> Iterator[None]:
    """Let a writer's writes come late, each by another while."""

    async def step(_: int) -> None:
        await asyncio.sleep(chance.choice((0, 0, 0.002, 0.02, 0.06)))

    with before_writes(queue, step):
        yield

"""Callers that end as by kill -9 between two commands to the server, and answers that are lost."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
from pymongo.errors import AutoReconnect

from tests.contract.subject import QueueUnderTest
from zaqar_lite.storage.mongodb.posting import MongoMessageStore


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
def lost_answer(
    owner: object, name: str, meanwhile: Callable[[], Awaitable[Any]]
) -> Iterator[list[Any]]:
    """Lose the answer to the first call of `owner.name`; yields what was done before the loss."""
    call, done = getattr(owner, name), list[Any]()

    async def lose(*args: Any, **kwargs: Any) -> Any:
        answer = await call(*args, **kwargs)
        if done:
            return answer
        done.append(None)  # what is done meanwhile gets its answers
        done[0] = await meanwhile()
        raise AutoReconnect("connection closed")

    with patch.object(owner, name, lose):
        yield done
    assert done, f"nothing has called {name}"

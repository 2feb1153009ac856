"""Callers that end as by kill -9 between two commands to the server."""

from collections.abc import Awaitable, Callable
from typing import cast
from unittest.mock import patch

import pytest

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

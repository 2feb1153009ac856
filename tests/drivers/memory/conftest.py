"""Fixtures of the memory driver's own tests: a clock that stands still until it is moved."""

from typing import cast

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.storage.memory import create
from zaqar_lite.storage.memory.messages import MemoryMessageStore


@pytest.fixture
def clock() -> Clock:
    return Clock(wall=lambda: 1_800_000_000.0, monotonic=lambda: 0.0)


@pytest.fixture
def store(clock: Clock) -> MemoryMessageStore:
    messages, _ = create("memory://", clock=clock, options=StoreOptions())
    return cast(MemoryMessageStore, messages)


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("project", "queue")

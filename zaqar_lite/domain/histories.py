"""What a queue keeps of messages that were deleted or failed.

Durations are milliseconds, instants milliseconds since 1970 (see `models`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class HistoryState(Enum):
    """Which list of a queue's past: acknowledged, or exhausted without a dead-letter queue."""

    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class HistoryEntry:
    """A message that is over: when it ended, how often it was claimed and by which Client-IDs."""

    id: str
    ended_at: int
    attempts: int
    consumers: Sequence[str] = ()


@dataclass(slots=True)
class HistoryPage:
    """One page of a queue's history, oldest first, and the marker of the next (opaque text)."""

    entries: Sequence[HistoryEntry]
    marker: str | None

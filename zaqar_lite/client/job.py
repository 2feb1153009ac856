"""A job of the server, as it was when it was asked."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What a job has done so far.

    Attributes:
        path: where the server shows the job; empty if everything was done at once.
        state: running, completed, cancelled or failed.
        total: messages that were there at the start; `examined` of them were looked at.
        selected: messages that the job is about; `done` of them are done.
        refused: how many messages were left as they are, by the reason.
        targets: how many letters went to each queue, or would go in a dry run.
        rate: messages a second.
        remaining: seconds until the end; None if unknown.
        sample: up to ten of the selected messages, in a dry run.
    """

    path: str
    id: str
    state: str
    total: int
    examined: int
    selected: int
    done: int
    refused: Mapping[str, int]
    rate: float
    remaining: int | None
    sample: Sequence[Mapping[str, Any]] = ()
    error: str | None = None
    targets: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done."""
        return self.state != "running"

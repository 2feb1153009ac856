"""A job of the server, as it was when it was asked."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What a job has done so far.

    Attributes:
        path: where the server shows it; empty where the act was done at once.
        state: running, completed, cancelled or failed.
        total: messages that were there at the start; `examined` were looked at.
        selected: messages that were meant; to `done` it was done.
        refused: messages that were left alone, by the reason.
        targets: how many letters went to which queue; of a dry run, would go.
        rate: messages a second; `remaining` are seconds, None where nobody knows.
        sample: of a dry run, up to ten of what is meant.
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

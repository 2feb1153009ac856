"""What services of records share: changes that are repeated."""

import pytest

from zaqar_lite.domain.errors import (
    Conflict,
    NotFound,
    QueueChanged,
    RecordChanged,
    Unavailable,
    ZaqarLiteError,
)
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.records import TRIES, retried

pytestmark = pytest.mark.anyio
QUEUE = QueueRef("p", "jobs")


class Counter:
    """A change that loses its first races."""

    def __init__(self, lost: int, error: ZaqarLiteError) -> None:
        self._lost = lost
        self._error = error
        self.calls = 0

    @retried("The queue {1.name!r}")
    async def change(self, queue: QueueRef, *, by: int) -> int:
        self.calls += 1
        if self.calls <= self._lost:
            raise self._error
        return by

    @retried("The thing", Conflict)
    async def refuse(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [RecordChanged("now"), QueueChanged("now")])
async def test_a_change_that_loses_races_begins_anew(error: ZaqarLiteError) -> None:
    counter = Counter(TRIES - 1, error)
    assert await counter.change(QUEUE, by=3) == 3
    assert counter.calls == TRIES


async def test_a_change_that_loses_every_race_says_what_is_changed_too_often() -> None:
    counter = Counter(TRIES, RecordChanged("now"))
    with pytest.raises(Unavailable, match=r"^The queue 'jobs' is being changed too often"):
        await counter.change(QUEUE, by=3)
    assert counter.calls == TRIES


async def test_another_error_can_stand_for_too_many_races() -> None:
    with pytest.raises(Conflict, match=r"^The thing is being changed too often"):
        await Counter(0, RecordChanged("now")).refuse()


async def test_any_other_error_ends_a_change_at_once() -> None:
    counter = Counter(1, NotFound("gone"))
    with pytest.raises(NotFound):
        await counter.change(QUEUE, by=3)
    assert counter.calls == 1

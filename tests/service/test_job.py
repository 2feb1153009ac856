"""What a job tells of itself."""

import pytest

from zaqar_lite.service.jobs.bulk import Choice, Job, JobAct, Order


@pytest.mark.parametrize(
    ("order", "examined", "selected", "left"),
    [
        (Order(filter=Choice()), 0, 0, None),
        (Order(filter=Choice()), 250, 10, 30),
        (Order(filter=Choice()), 1_000, 10, 0),
        (Order(filter=Choice()), 1_001, 10, 0),  # some came between the count and the start
        # It ends at the limit, however much is in the queue, or at the queue's end before that.
        (Order(filter=Choice(), limit=40), 50, 20, 10),
        (Order(filter=Choice(), limit=1 << 40), 250, 20, 30),
        (Order(filter=Choice(), limit=40), 100, 0, 90),
        # The queue's total says nothing about a group.
        (Order(filter=Choice(group="g")), 50, 50, None),
        (Order(filter=Choice(group="g"), limit=100), 50, 50, 10),
    ],
)
def test_the_seconds_left(order: Order, examined: int, selected: int, left: int | None) -> None:
    job = Job("j", "letters", JobAct.REDRIVE, order, 5_000, total=1_000)
    job.examined, job.selected = examined, selected
    assert job.seconds_left(15_000) == left
    job.state = "completed"
    assert job.seconds_left(15_000) is None

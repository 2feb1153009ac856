"""The index of expiry: entries that expire at one instant share a place in it."""

from zaqar_lite.storage.memory.deadlines import Deadlines


def _drain(deadlines: Deadlines, now: int) -> list[tuple[int, int]]:
    """Take out all that is due, in the order in which it comes."""
    taken = []
    while (position := deadlines.due(now)) is not None:
        instant = deadlines.first
        assert instant is not None
        deadlines.remove(instant, position)
        taken.append((instant, position))
    return taken


def test_gives_what_is_due_by_instant() -> None:
    deadlines = Deadlines()
    entries = [(30, 1), (10, 2), (20, 3), (20, 4), (20, 5), (40, 6)]
    for instant, position in entries:
        deadlines.add(instant, position)
    deadlines.remove(20, 4)
    assert deadlines.first == 10
    assert deadlines.due(9) is None
    assert sorted(_drain(deadlines, 30)) == [(10, 2), (20, 3), (20, 5), (30, 1)]
    assert deadlines.first == 40


def test_keeps_nothing_of_an_instant_that_is_empty() -> None:
    deadlines = Deadlines()
    for position in range(10_000):
        deadlines.add(7, position)
    assert len(_drain(deadlines, 7)) == 10_000
    assert deadlines.first is None
    deadlines.add(7, 1)
    assert _drain(deadlines, 7) == [(7, 1)]

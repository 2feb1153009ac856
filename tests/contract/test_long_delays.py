"""A message that is due in a year costs what any other delayed message costs."""

import pytest

from tests.contract.subject import QueueUnderTest
from tests.measure_long_delays import KINDS, measure
from zaqar_lite.storage.base import MAX_EXAMINED

pytestmark = pytest.mark.anyio


async def test_a_message_that_is_due_in_a_year_costs_what_any_other_costs(
    queue: QueueUnderTest,
) -> None:
    """Stores that count what they look at look at as much; in all of them what is due is found."""
    stores, divisor = queue.stores, queue.stores.case.size_divisor
    costs = await measure(stores.messages, 3_000 // divisor, rounds=3 if divisor < 100 else 1)
    near, far = KINDS
    for call in ("post", "claim", "list", "stats"):
        examined = [[one.examined for one in costs[call, kind]] for kind in (near, far)]
        assert examined[0] == examined[1], call
        assert all(count <= MAX_EXAMINED for count in examined[1]), call

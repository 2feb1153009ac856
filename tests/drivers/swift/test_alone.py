"""The contract where being alone makes a difference: the suite itself runs with tooz."""

import pytest

from tests.contract import test_readiness as readiness
from tests.contract.conftest import open_stores, other, project, store_uri, stores
from tests.contract.conftest import queue as queue  # noqa: PLC0414 - a fixture of this module
from tests.contract.stores import DriverCase
from tests.contract.test_concurrency import *  # noqa: F403
from tests.contract.test_idempotency import *  # noqa: F403
from tests.contract.test_model import (
    test_the_driver_answers_as_the_model_does as test_the_driver_answers_as_the_model_does,  # noqa: PLC0414
)
from tests.contract.test_readiness import ears, event
from tests.contract.test_versions import *  # noqa: F403
from tests.drivers.swift.together import ALONE
from zaqar_lite.storage.swift import objects

__all__ = ["ears", "event", "open_stores", "other", "project", "store_uri", "stores"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def case() -> DriverCase:
    """The driver without a coordination URL."""
    return ALONE


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let listings have several pages, so that small queues tell what becomes of large ones."""
    monkeypatch.setattr(objects, "PAGE", 8)


# What a process that is alone tells who waits: all that happens, for it is asked once a minute.

test_what_becomes_ready_in_a_watched_queue_is_announced = (
    readiness.test_what_becomes_ready_in_a_watched_queue_is_announced
)
test_a_letter_is_announced_in_its_new_queue = readiness.test_a_letter_is_announced_in_its_new_queue
test_what_may_be_due_earlier_is_told_with_a_count_of_zero = (
    readiness.test_what_may_be_due_earlier_is_told_with_a_count_of_zero
)
test_a_delayed_message_is_due_when_its_delay_ends = (
    readiness.test_a_delayed_message_is_due_when_its_delay_ends
)
test_a_claimed_message_is_due_when_its_lease_ends = (
    readiness.test_a_claimed_message_is_due_when_its_lease_ends
)
test_a_parked_message_is_due_when_its_time_comes = (
    readiness.test_a_parked_message_is_due_when_its_time_comes
)
test_a_lapsed_message_is_due_when_its_back_off_ends = (
    readiness.test_a_lapsed_message_is_due_when_its_back_off_ends
)
test_what_a_sweep_has_made_ready_is_due_no_more = (
    readiness.test_what_a_sweep_has_made_ready_is_due_no_more
)

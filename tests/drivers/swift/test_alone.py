"""The contract where being alone makes a difference: the suite itself runs with tooz."""

import pytest

from tests.contract.conftest import open_stores, other, project, store_uri, stores
from tests.contract.conftest import queue as queue  # noqa: PLC0414 - a fixture of this module
from tests.contract.stores import DriverCase
from tests.contract.test_concurrency import *  # noqa: F403
from tests.contract.test_idempotency import *  # noqa: F403
from tests.contract.test_model import (
    test_the_driver_answers_as_the_model_does as test_the_driver_answers_as_the_model_does,  # noqa: PLC0414
)
from tests.contract.test_versions import *  # noqa: F403
from tests.drivers.swift.together import ALONE

__all__ = ["open_stores", "other", "project", "store_uri", "stores"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def case() -> DriverCase:
    """The driver without a coordination URL."""
    return ALONE

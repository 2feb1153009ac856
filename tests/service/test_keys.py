"""Keys as the service keeps them."""

import pytest

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.identity import How, Principal
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.service.identity import keys as module
from zaqar_lite.service.identity.keys import Keys
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.memory import create

pytestmark = pytest.mark.anyio
OPERATOR = Principal(How.KEY, None)


async def test_a_project_has_a_thousand_keys_at_most() -> None:
    clock = Clock()
    management: ManagementStore = create("memory://", clock=clock, options=StoreOptions())[1]
    for number in range(module.MAX_KEYS - 1):
        await management.put_record(module.LISTED, "p", f"{number:016x}", b"{}", expected=None)
    keys = Keys(management, clock)
    await keys.create(OPERATOR, "p", ["*:*"])
    with pytest.raises(Invalid, match="1000 keys"):
        await keys.create(OPERATOR, "p", ["*:*"])
    key, _ = await keys.create(OPERATOR, "other", ["*:*"])
    assert key.hash
    assert key.hash not in repr(key)

# Generated from asynchronous/client.py by tests/generate_sync.py; change it there.
"""The whole sync client: its methods come from one module per resource."""

from zaqar_lite.client.sync.claiming import SyncClaiming
from zaqar_lite.client.sync.dead_letters import SyncDeadLetters
from zaqar_lite.client.sync.events import SyncEvents
from zaqar_lite.client.sync.keys import SyncKeys
from zaqar_lite.client.sync.pools import SyncPools
from zaqar_lite.client.sync.quotas import SyncQuotas
from zaqar_lite.client.sync.schedules import SyncScheduling
from zaqar_lite.client.sync.subscriptions import SyncSubscriptions
from zaqar_lite.client.sync.topics import SyncTopics


class Client(
    SyncDeadLetters,
    SyncClaiming,
    SyncKeys,
    SyncEvents,
    SyncTopics,
    SyncQuotas,
    SyncPools,
    SyncSubscriptions,
    SyncScheduling,
):
    """The sync client, which threads may share: `with Client(...) as client:`.

    Without a block, `client.close()` closes its connections.
    """

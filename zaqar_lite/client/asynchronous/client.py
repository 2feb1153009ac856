"""The whole async client: its methods come from one module per resource."""

from zaqar_lite.client.asynchronous.claiming import AsyncClaiming
from zaqar_lite.client.asynchronous.dead_letters import AsyncDeadLetters
from zaqar_lite.client.asynchronous.events import AsyncEvents
from zaqar_lite.client.asynchronous.keys import AsyncKeys
from zaqar_lite.client.asynchronous.pools import AsyncPools
from zaqar_lite.client.asynchronous.quotas import AsyncQuotas
from zaqar_lite.client.asynchronous.schedules import AsyncScheduling
from zaqar_lite.client.asynchronous.subscriptions import AsyncSubscriptions
from zaqar_lite.client.asynchronous.topics import AsyncTopics


class AsyncClient(
    AsyncDeadLetters,
    AsyncClaiming,
    AsyncKeys,
    AsyncEvents,
    AsyncTopics,
    AsyncQuotas,
    AsyncPools,
    AsyncSubscriptions,
    AsyncScheduling,
):
    """The async client, for one event loop after another: `async with AsyncClient(...) as client:`.

    Without a block, `await client.close()` closes its connections.
    """

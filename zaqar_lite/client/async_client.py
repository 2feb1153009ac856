"""The async client, over aiohttp: its methods, from one module per resource."""

from zaqar_lite.client.asynchronous.claiming import AsyncClaiming
from zaqar_lite.client.asynchronous.dead_letters import AsyncDeadLetters
from zaqar_lite.client.asynchronous.keys import AsyncKeys
from zaqar_lite.client.asynchronous.queues import AsyncQueues


class AsyncClient(AsyncQueues, AsyncDeadLetters, AsyncClaiming, AsyncKeys):
    """An async client for one event loop. Use it in an `async with`, or `await close()` it.

    Its arguments are `Shell`'s. `Client` has the same methods.
    """

"""aiohttp's connections, which tell the line of a waiting request what it waits on."""

import aiohttp
from aiohttp.client import ClientTimeout
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from zaqar_lite.client.line import CURRENT


class Connector(aiohttp.TCPConnector):
    """Connections of one client."""

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> Connection:
        """Take a connection for a request."""
        connection = await super().connect(req, traces, timeout)
        line = CURRENT.get()
        if line is not None and connection.transport is not None:
            line.take(connection.transport.get_extra_info("socket"))
        return connection

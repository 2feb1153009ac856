"""The connection of a call that waits for messages, and how its wait is ended.

Hanging up ends the wait and loses no message. Closing the connection would lose an answer on its
way, and its claim would be held until it lapses. So only the sending half is closed. The server
then sees that nobody waits any more, and closes the connection after the answer, if there is one.
"""

import asyncio
import contextlib
import contextvars
import socket
import threading
from asyncio.trsock import TransportSocket

LONGEST = 20
"""Seconds that one request waits at most: proxies cut what is silent for a minute."""
POLL = 1.0
"""Seconds between two requests to a server that does not wait."""
GRACE = 1.0
"""Seconds until the other half is closed too: a proxy in between may not pass the end on."""
Socket = socket.socket | TransportSocket
"""A socket, or what asyncio shows of one."""


class Connection:
    """The connection of one wait, which any thread, or a signal handler, may hang up for good."""

    def __init__(self) -> None:
        self.asked_at = 0.0  # when the last request left, in monotonic seconds
        self._lock = threading.RLock()  # a signal handler may come while its thread holds it
        self._over = threading.Event()
        self._socket: Socket | None = None
        self._sleeping: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether it was hung up."""
        return self._over.is_set()

    def hang_up(self) -> None:
        """End the wait for an answer, and the pause before the next request."""
        self._over.set()
        with self._lock:
            if self._socket is not None:
                self._shut(self._socket, socket.SHUT_WR)
                timer = threading.Timer(GRACE, self._cut, [self._socket])
                timer.daemon = True
                timer.start()
            sleeping = self._sleeping
        if sleeping is not None:
            sleeping.get_loop().call_soon_threadsafe(sleeping.cancel)

    def take(self, connection: Socket) -> None:
        """Note the connection that the answer will come on."""
        with self._lock:
            self._socket = connection
            if self.over:
                self.hang_up()

    def leave(self) -> None:
        """Forget the connection: it has answered, and another request may use it next."""
        with self._lock:
            self._socket = None

    def sleep(self, seconds: float) -> None:
        """Sleep, until it is hung up."""
        self._over.wait(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Sleep, until it is hung up."""
        self._sleeping = asyncio.get_running_loop().create_future()
        try:
            if not self.over:
                await asyncio.wait([self._sleeping], timeout=seconds)
        finally:
            self._sleeping = None

    def _cut(self, connection: Socket) -> None:
        with self._lock:
            if self._socket is connection:
                self._shut(connection, socket.SHUT_RDWR)

    @staticmethod
    def _shut(connection: Socket, how: int) -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            if isinstance(connection, socket.socket):
                # Not the method of a TLS socket, which would forget its keys and with them the
                # answer that may still come.
                socket.socket.shutdown(connection, how)
            else:
                connection.shutdown(how)


CURRENT: contextvars.ContextVar[Connection | None] = contextvars.ContextVar(
    "connection", default=None
)
"""The connection of the request that this thread or task is sending."""

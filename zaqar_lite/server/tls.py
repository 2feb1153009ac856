"""TLS of the server: new files are used for new connections, and open ones go on."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.server.connections import HttpConnection
from zaqar_lite.server.http1 import ServerState

logger = logging.getLogger("zaqar_lite")
LOOK_EVERY = 5.0
"""Seconds between two looks whether a file has changed."""
_ABOVE = 64
"""Connections above the bound, whose clients are told 503 after their handshake."""
_PAUSE = 0.1
"""Seconds until another file may be open."""


class Certificate:
    """A certificate with its key, and the CA of client certificates if clients need one.

    TLS 1.2 and later. New connections use the newest files. If these can't be used, the log says
    why, and the certificate that was read before stays in use.

    Raises:
        ConfigurationError: a file is missing, or they do not fit together.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._files = tuple(path for path in (cert, key, client_ca) if path is not None)
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._seen: list[int] = []
        self.context = self._make()
        """Of new connections; another one once the files have changed."""

    def reload(self) -> bool:
        """Use the files as they are now for new connections; answer whether they can be used."""
        try:
            self.context = self._make()
        except ConfigurationError as exc:
            logger.error("the certificate was not renewed, the old one stays: %s", exc)
            return False
        logger.info("the certificate was read again from %s", self._cert)
        return True

    async def follow(self) -> None:
        """Read the files again whenever they have changed, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._stamp() != self._seen:
                self.reload()

    def _make(self) -> ssl.SSLContext:
        self._seen = self._stamp()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            for path in self._files:
                path.open("rb").close()  # the errors of ssl name no file
            # OpenSSL would ask for the passphrase of a key that has one on the terminal, and wait.
            context.load_cert_chain(self._cert, self._key, password="")
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                # Who resumes a session shows no certificate again, for two hours. Those of TLS 1.2
                # that have an id Python can't turn off.
                context.options |= ssl.OP_NO_TICKET
                context.num_tickets = 0
        except OSError as exc:  # those of ssl are too
            raise ConfigurationError(f"tls_cert, tls_key, tls_client_ca: {_why(exc)}.") from None
        return context

    def _stamp(self) -> list[int]:
        """A value that changes whenever one of the files does; empty while one is missing."""
        try:
            return [path.stat().st_mtime_ns for path in self._files]
        except OSError:
            return []


def _why(error: OSError) -> str:
    """Say what was wrong; the errors of ssl are OSErrors that name no file."""
    if isinstance(error, ssl.SSLError):
        return f"the files do not fit together, or are not PEM ({error.reason or error})"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


async def accept(
    listener: socket.socket,
    certificate: Certificate,
    connection: type[HttpConnection],
    state: ServerState,
) -> None:
    """Accept connections, each of which begins after its handshake, for ever.

    uvicorn's servers count a client from then on only, and wait for its handshake for a minute: it
    could take all files that this process may open. Here a handshake has as long as a client may be
    silent, and counts; far above the bound a client is closed.
    """
    loop, begun = asyncio.get_running_loop(), 0

    async def shake_hands(client: socket.socket) -> None:
        nonlocal begun
        try:
            await loop.connect_accepted_socket(
                lambda: connection(None, state),
                client,
                ssl=certificate.context,
                ssl_handshake_timeout=connection.read_timeout,
            )
        except OSError:  # it is gone, too slow, or speaks no TLS
            client.close()
        except Exception:
            logger.exception("unexpected error in a handshake")
            client.close()
        finally:
            begun -= 1

    async with asyncio.TaskGroup() as handshakes:
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # this process may open no more files now
                await asyncio.sleep(_PAUSE)
                continue
            if len(state.connections) + begun < connection.most + _ABOVE:
                begun += 1
                handshakes.create_task(shake_hands(client))
            else:
                client.close()

"""TLS of the server: new files are used for new connections, and open ones go on."""

import asyncio
import logging
import ssl
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError

logger = logging.getLogger("zaqar_lite")
LOOK_EVERY = 5.0
"""Seconds between two looks whether a file has changed."""


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
        self._seen: tuple[object, ...] = ()
        self.context = self._newest = self._make()
        """Of all connections; the one that each goes on with is chosen at its handshake."""
        self.context.sni_callback = self._use_newest

    def reload(self) -> bool:
        """Use the files as they are now for new connections; answer whether they can be used."""
        try:
            self._newest = self._make()
        except ConfigurationError as exc:
            logger.error("the certificate was not renewed, the old one stays: %s", exc)
            return False
        logger.info("the certificate was read again from %s", self._cert)
        return True

    def _use_newest(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Let a handshake go on with the newest certificate, and the newest CA of clients' ones."""
        connection.context = self._newest

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

    def _stamp(self) -> tuple[object, ...]:
        """A value that changes whenever one of the files does."""
        stamps: list[object] = []
        for path in self._files:
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return tuple(stamps)


def _why(error: OSError) -> str:
    """Say what was wrong; the errors of ssl are OSErrors that name no file."""
    if isinstance(error, ssl.SSLError):
        return f"the files do not fit together, or are not PEM ({error.reason or error})"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)

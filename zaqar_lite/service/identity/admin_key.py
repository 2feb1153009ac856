"""The first key: it lies in a file that only the server's user may read."""

import logging
import os
import secrets
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError, Invalid
from zaqar_lite.service.identity.keys import Keys, new_key

logger = logging.getLogger("zaqar_lite")


class AdminKey:
    """Make the key's file where there is none, and let the store know the key."""

    def __init__(self, path: Path, keys: Keys) -> None:
        self._path = path
        self._keys = keys

    async def ensure(self) -> None:
        """Do so; several processes may at once.

        A key whose id the store knows already stays as it is there: disabled, for example.

        Raises:
            ConfigurationError: the file can't be made or read, or holds something else.
            Unavailable: the store can't keep it now.
        """
        try:
            if not self._path.exists():
                self._make()
            text = self._path.read_text(encoding="ascii").strip()
            is_open = self._path.stat().st_mode & 0o077
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it holds no key"
            raise ConfigurationError(f"admin_key_file: {self._path}: {why}.") from None
        if is_open:
            logger.warning("others may read the admin key in %s: chmod 600 it", self._path)
        try:
            made = await self._keys.adopt(text)
        except Invalid as exc:
            raise ConfigurationError(f"admin_key_file: {self._path}: {exc}.") from None
        if made:
            logger.info("the admin key is in %s", self._path)

    def _make(self) -> None:
        """Write a new key. It appears whole under its name, and of racing writers one wins."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(new_key(secrets.token_hex(8)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, self._path)
            except FileExistsError:
                return
        finally:
            draft.unlink()

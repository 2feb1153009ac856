"""Read the public keys (JWKS) of an issuer of tokens, from a URL or a file."""

import asyncio
from pathlib import Path

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_LARGEST = 1_048_576


class KeySet:
    """The JWKS of an issuer; `source` is a URL or the path of a file."""

    def __init__(self, source: str) -> None:
        self._source = source

    async def fetch(self) -> bytes:
        """Read the document: at most 1 MiB, without following redirects.

        Raises:
            OSError: the document can't be read now.
            ValueError: the document is larger than 1 MiB.
        """
        if not self._source.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self._source).read_bytes)
        try:
            return await self._get()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise OSError(str(exc) or "it does not answer") from exc

    async def _get(self) -> bytes:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, raise_for_status=True) as session,
            session.get(self._source, allow_redirects=False) as answer,
        ):
            read = bytearray()
            async for part in answer.content.iter_chunked(65_536):
                read += part
                if len(read) > _LARGEST:
                    raise ValueError("it is too large")
            return bytes(read)

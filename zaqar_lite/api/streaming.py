"""Answers whose body comes part by part."""

import asyncio
import time

from zaqar_lite.api.http import Exchange, Request, Response, Send
from zaqar_lite.api.metering import Meter


class Streaming:
    """Send streams; what is read of them counts against the project's rates."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def send(
        self,
        request: Request,
        response: Response,
        headers: list[tuple[bytes, bytes]],
        send: Send,
        exchange: Exchange | None,
    ) -> None:
        """Send a response that streams, from its head to its end."""

        async def write(part: bytes) -> None:
            if self._meter.rates.is_on:
                self._meter.streamed(request, len(part))
            await send({"type": "http.response.body", "body": part, "more_body": True})

        assert response.stream is not None  # noqa: S101 - the caller has looked
        request.streams_since = time.perf_counter()
        try:
            await send(
                {"type": "http.response.start", "status": response.status, "headers": headers}
            )
            await response.stream(write)
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:  # the server stops, and can't wait for a slow reader
            if exchange is not None:
                await exchange.abort()

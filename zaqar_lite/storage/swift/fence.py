"""Let Swift refuse late writes: each carries a signature that expires seconds after it was sent.

A write whose answer is lost may still be on its way: in a load balancer, or in a socket of a proxy
that hangs. Swift has no compare-and-swap, so a write that lands after the next operation on the
queue would undo that operation. So each write of an object is a temporary URL (Swift's filter
`tempurl`). When an answer is lost, the driver waits until the write can't land any more, and only
then repeats it or gives it up; the queue's lock is held until then. A write that Swift's proxy has
let in by then carries its timestamp, and Swift drops it where something newer is stored.

Where Swift gives no key to sign with, the wait is the same, but nothing refuses later writes.
"""

import hmac
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any

KEY_HEADERS = ("X-Account-Meta-Temp-URL-Key", "X-Account-Meta-Temp-URL-Key-2")
_SLACK = 1.0
"""Seconds by which the clocks of Swift's proxies may differ."""


class Fence:
    """Sign writes by Swift's clock; `timeout` is how long a request may be silent."""

    def __init__(self, timeout: float) -> None:
        self._validity = timeout / 2 + 1
        self.lasts = self._validity + _SLACK
        """Seconds after which a write that was sent can't land any more."""
        self.key: bytes | None = None
        self._ahead = (float("-inf"), float("inf"))
        """Bounds of how many seconds this machine's clock is ahead of Swift's."""

    @property
    def skew(self) -> float:
        """Seconds that this machine's clock is ahead of Swift's, as far as that is certain."""
        low, high = self._ahead
        return low if low > 0 else min(high, 0.0)

    def note_clock(self, date: str | None, started: float) -> None:
        """Compare clocks: Swift set its Date, in whole seconds, between `started` and now."""
        if date is None:
            return
        with suppress(ValueError):
            swift_time = parsedate_to_datetime(date).timestamp()
            seen = (started - swift_time - 1, time.time() - swift_time)
            low, high = max(seen[0], self._ahead[0]), min(seen[1], self._ahead[1])
            self._ahead = (low, high) if low <= high else seen  # else a clock was set

    def sign(self, method: str, path: str, now: float) -> dict[str, Any]:
        """The query of a write to an object that is sent at `now` or never; nothing without a key.

        `path` is /v1/ACCOUNT/CONTAINER/OBJECT, not quoted.
        """
        if self.key is None:
            return {}
        high = self._ahead[1]
        ends = int(now - (high if high < float("inf") else 0) + self._validity)
        signed = hmac.new(self.key, f"{method}\n{ends}\n{path}".encode(), sha256)
        return {"temp_url_sig": signed.hexdigest(), "temp_url_expires": ends}

"""Warnings that clients cause, bounded so that no client can fill the log."""

import asyncio
import logging
from collections import Counter

INTERVAL = 60.0
"""Seconds after a line in which the same text is only counted."""


class Seldom(logging.Filter):
    """Lets the first of each of these texts into the log; then one line a minute tells how many.

    The texts are those of `record.msg`, before arguments are put in. A text that has not come for a
    minute is logged at once again. It is for loggers that are used in the event loop.
    """

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._texts = frozenset(texts)
        self._more: Counter[str] = Counter()
        self._quiet: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is logged."""
        text = record.msg
        if text not in self._texts:
            return True
        if text in self._quiet:
            self._more[text] += 1
            return False
        self._be_quiet(record)
        return True

    def _be_quiet(self, record: logging.LogRecord) -> None:
        self._quiet.add(record.msg)
        asyncio.get_running_loop().call_later(INTERVAL, self._tell, record)

    def _tell(self, record: logging.LogRecord) -> None:
        """Tell how many came in the minute that has passed, if any did."""
        self._quiet.discard(record.msg)
        count = self._more.pop(record.msg, 0)
        if count:
            more = "%s (%d more in the last minute)"
            logging.getLogger(record.name).log(record.levelno, more, record.getMessage(), count)
            self._be_quiet(record)

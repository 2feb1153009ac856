"""What a command says while the server does not answer: one line at once, then a countdown."""

import math
import sys
import threading
import time

from zaqar_lite.commands import sdk
from zaqar_lite.commands.output import printable
from zaqar_lite.durations import duration_shown

CLEAR = "\r\x1b[K"


class Retrying:
    """Print each failure whose request is sent again; several threads may share it.

    A terminal gets one line that counts down; elsewhere a wait of a second or more is a line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._until = 0.0
        self._words = ""

    def __call__(self, retry: "sdk.Resend") -> None:
        """Print one failure; the caller waits afterwards."""
        with self._lock:
            terminal = sys.stderr.isatty()
            if not self._told:
                self._told = True
                self._print(
                    f"{'' if not terminal else CLEAR}zaqar-lite: {printable(retry.failure)}\n"
                )
            now = time.monotonic()
            counting = now < self._until
            if counting and not terminal:
                return  # another request has told of its wait, and it is not over
            self._words = f"trying again ({retry.attempt + 1} of {retry.attempts})"
            self._until = now + retry.seconds
            if terminal:
                if not counting:
                    threading.Thread(target=self._count, daemon=True).start()
            elif retry.seconds >= 1:
                self._print(f"zaqar-lite: {self._words} in {duration_shown(retry.seconds)}\n")

    def _count(self) -> None:
        while True:
            with self._lock:
                left = self._until - time.monotonic()
                if left <= 0:
                    self._print(CLEAR)
                    return
                self._print(f"{CLEAR}{self._words} in {math.ceil(left)}s")
            time.sleep(min(left, 0.2))

    @staticmethod
    def _print(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

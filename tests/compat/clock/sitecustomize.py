"""Imported by each Python process of a tempest run: a long sleep moves the server's clock instead.

The official plugin sleeps 70 s twice for claims to lapse. This folder is on the path of tempest
alone; ZAQAR_TEST_CLOCK names the file from which the server reads how far its clock is moved.
"""

import os
import time
from pathlib import Path

_LONG = 60.0
_sleep = time.sleep


def _move(seconds: float) -> None:
    if seconds < _LONG:
        _sleep(seconds)
        return
    offset = Path(os.environ["ZAQAR_TEST_CLOCK"])
    moved = int(offset.read_text(encoding="ascii")) + int(seconds * 1000)
    new = offset.with_suffix(".new")
    new.write_text(str(moved), encoding="ascii")
    new.replace(offset)


time.sleep = _move  # type: ignore[assignment] # nobody sleeps by an object with __index__

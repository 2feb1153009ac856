"""Measure what encryption costs a message: `python -m tests.measure_sealing [BYTES]`.

Twenty bodies of so many bytes (200) are sealed and opened by keys in memory, again and again;
printed are the medians in microseconds of processor time a message.
"""

import asyncio
import secrets
import statistics
import sys
import time

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.encryption.encryption_keys import EncryptionKeys
from zaqar_lite.storage.memory import create

_COUNT, _ROUNDS = 20, 200


async def measure(size: int) -> tuple[float, float]:
    """The microseconds that it takes to seal a message, and to open one."""
    clock = Clock()
    management = create("memory://", clock=clock, options=StoreOptions())[1]
    encryption_keys = EncryptionKeys(management, {"key": secrets.token_bytes(32)}, clock)
    new = [NewMessage(b'"%b"' % (b"x" * (size - 2)), 3_600_000)] * _COUNT
    sealing: list[float] = []
    opening: list[float] = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        sealed = await encryption_keys.seal(QueueRef("p", "q"), new)
        between = time.process_time()
        for message in sealed:
            await encryption_keys.open_body("p", message.body)
        sealing.append(between - begun)
        opening.append(time.process_time() - between)
    scale = 1_000_000 / _COUNT
    return statistics.median(sealing) * scale, statistics.median(opening) * scale


def main() -> None:
    """Measure."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    sealing, opening = asyncio.run(measure(size))
    print(f"{size} bytes: {sealing:.1f} us to seal a message, {opening:.1f} us to open one")


if __name__ == "__main__":
    main()

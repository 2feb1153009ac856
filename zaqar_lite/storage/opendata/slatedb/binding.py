"""The SlateDB library as this server uses it: its settings, its reads, and one repair of speed.

The binding's own copying of arguments costs Python a loop for every byte; `_copy_in_one_step`
replaces it. It touches private names: the version is pinned, and the names are checked.
"""

import ctypes
import logging
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("SLATEDB_UNIFFI_RUNTIME_THREADS", "2")  # read when the library is loaded

from slatedb import uniffi as slatedb
from slatedb.uniffi._slatedb_uniffi import slatedb as binding

__all__ = ["DURABLE", "DURABLE_SCAN", "ONE_BLOCK", "pairs", "settings", "slatedb"]
logger = logging.getLogger(__name__)
# Tables of damaged blocks can't be compacted: with SlateDB's own limit of 8 that wait for it, the
# store would take no writes soon, and then not open any more.
_MOST_WAITING = "1000"
_SETTINGS = {
    "l0_max_ssts": _MOST_WAITING,
    "l0_max_ssts_per_key": _MOST_WAITING,
    "flush_interval": "null",
    "garbage_collector_options.wal_options.interval": '"30s"',
    "garbage_collector_options.wal_options.min_age": '"60s"',
}
# SlateDB's reads see what is not durable yet, unless they are told otherwise.
DURABLE = slatedb.ReadOptions(
    durability_filter=slatedb.DurabilityLevel.REMOTE, dirty=False, cache_blocks=True
)


def _scan(read_ahead: int, tasks: int) -> slatedb.ScanOptions:
    return slatedb.ScanOptions(
        durability_filter=slatedb.DurabilityLevel.REMOTE,
        dirty=False,
        read_ahead_bytes=read_ahead,
        cache_blocks=False,
        max_fetch_tasks=tasks,
    )


DURABLE_SCAN = _scan(1_048_576, 2)
# Reading ahead would meet damage a megabyte early.
ONE_BLOCK = _scan(1, 1)


def pairs(rows: Sequence[slatedb.KeyValue]) -> list[tuple[bytes, bytes]]:
    """Rows of the binding as keys and values."""
    return [(row.key, row.value) for row in rows]


def settings() -> slatedb.Settings:
    """The settings of every store."""
    chosen = slatedb.Settings.default()
    for key, value in _SETTINGS.items():
        chosen.set(key, value)
    return chosen


def _copy_in_one_step() -> None:
    """Let the binding build its buffers with one C copy instead of a loop in Python."""
    builder = getattr(binding, "_UniffiRustBufferBuilder", None)
    if builder is None or not hasattr(builder, "_reserve") or not hasattr(builder, "write"):
        logger.warning("this release of slatedb has another binding: bytes are copied slowly")
        return
    move, cast, pointer = ctypes.memmove, ctypes.cast, ctypes.c_void_p

    def write(self: Any, value: bytes) -> None:  # noqa: ANN401 - the binding's private class
        size = len(value)
        buffer = self.rbuf
        if buffer.len + size > buffer.capacity:
            buffer = self.rbuf = binding._UniffiRustBuffer.reserve(buffer, size)
        if size:
            move(cast(buffer.data, pointer).value + buffer.len, bytes(value), size)
        buffer.len += size

    def write_i32(self: Any, value: int) -> None:  # noqa: ANN401 - as above
        write(self, value.to_bytes(4, "big", signed=True))

    builder.write = write
    builder.write_i32 = write_i32


_copy_in_one_step()

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
    """Let the binding copy bytes by one call, where it would go through them in Python."""
    names = ("_UniffiRustBufferStream", "_UniffiFfiConverterBytes", "_UniffiForeignBytes")
    if not all(hasattr(binding, name) for name in (*names, "_UniffiRustCallStatus")):
        logger.warning("this release of slatedb has another binding: bytes are copied slowly")
        return
    stream, converter, foreign = (getattr(binding, name) for name in names)
    make_status, check = binding._UniffiRustCallStatus.default, binding._uniffi_check_call_status
    copy_in = binding._UniffiLib.ffi_slatedb_uniffi_rustbuffer_from_bytes
    pointer, reference = ctypes.POINTER(ctypes.c_char), ctypes.byref
    cast: Any = ctypes.cast  # takes bytes, too

    def lower(value: bytes) -> Any:  # noqa: ANN401 - the binding's private class
        data = len(value).to_bytes(4, "big") + value
        status = make_status()
        buffer = copy_in(foreign(len(data), cast(data, pointer)), reference(status))
        check(None, status)
        return buffer

    def read(buffer: Any) -> Any:  # noqa: ANN401 - as above
        return stream(ctypes.string_at(buffer.data, buffer.len), buffer.len)

    converter.lower = lower
    stream.from_rust_buffer = read


_copy_in_one_step()

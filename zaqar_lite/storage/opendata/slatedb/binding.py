"""The SlateDB library as this server uses it: its settings, its reads, and one repair of speed.

The binding goes through arguments and results in Python, byte by byte and field by field;
`_copy_in_one_step` replaces that. It touches private names: the version is pinned.
"""

import ctypes
import os
from typing import Any

os.environ.setdefault("SLATEDB_UNIFFI_RUNTIME_THREADS", "2")  # read when the library is loaded

from slatedb import uniffi as slatedb
from slatedb.uniffi._slatedb_uniffi import slatedb as binding

__all__ = ["DURABLE", "FAILURES", "SCAN", "settings", "slatedb"]
FAILURES = slatedb.Error, slatedb.InternalError, OSError
"""What a call raises that failed; the second is a bug of the library."""
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


SCAN = slatedb.ScanOptions(
    durability_filter=slatedb.DurabilityLevel.REMOTE,
    dirty=False,
    read_ahead_bytes=1_048_576,
    cache_blocks=False,
    max_fetch_tasks=2,
)


def settings() -> slatedb.Settings:
    """The settings of every store."""
    chosen = slatedb.Settings.default()
    for key, value in _SETTINGS.items():
        chosen.set(key, value)
    return chosen


def _copy_in_one_step() -> None:
    """Let the binding copy bytes by one call, and read rows as their keys and values."""
    make_status, check = binding._UniffiRustCallStatus.default, binding._uniffi_check_call_status
    library, error = binding._UniffiLib, binding._UniffiFfiConverterTypeError
    copy_in = library.ffi_slatedb_uniffi_rustbuffer_from_bytes
    share = library.uniffi_slatedb_uniffi_fn_clone_writebatch
    put_in = library.uniffi_slatedb_uniffi_fn_method_writebatch_put
    delete_in = library.uniffi_slatedb_uniffi_fn_method_writebatch_delete
    stream, foreign = binding._UniffiRustBufferStream, binding._UniffiForeignBytes
    pointer, reference = ctypes.POINTER(ctypes.c_char), ctypes.byref
    cast: Any = ctypes.cast  # takes bytes, too

    def copied(value: bytes, status: Any) -> Any:  # noqa: ANN401 - the binding's private classes
        data = len(value).to_bytes(4, "big") + value
        return copy_in(foreign(len(data), cast(data, pointer)), status)

    def put(batch: slatedb.WriteBatch, key: bytes, value: bytes) -> None:
        status = make_status()
        at = reference(status)
        put_in(share(batch._handle, at), copied(key, at), copied(value, at), at)
        check(error, status)

    def delete(batch: slatedb.WriteBatch, key: bytes) -> None:
        status = make_status()
        at = reference(status)
        delete_in(share(batch._handle, at), copied(key, at), at)
        check(error, status)

    def read(buffer: Any) -> Any:  # noqa: ANN401 - as above
        return stream(ctypes.string_at(buffer.data, buffer.len), buffer.len)

    def read_row(rows: Any) -> tuple[bytes, bytes]:  # noqa: ANN401 - as above
        data, start = rows.data, rows.offset + 4
        middle = start + int.from_bytes(data[start - 4 : start], "big")
        end = middle + 4 + int.from_bytes(data[middle : middle + 4], "big")
        rows.offset = end + 17 + 8 * data[end + 16]  # behind its sequence and its instants
        return data[start:middle], data[middle + 4 : end]

    binding._UniffiFfiConverterTypeKeyValue.read = read_row
    slatedb.WriteBatch.put, slatedb.WriteBatch.delete = put, delete
    stream.from_rust_buffer = read


_copy_in_one_step()

"""Reading the attempts of messages, for who asks for details."""

import logging
from collections.abc import Mapping, Sequence

from zaqar_lite.domain.attempts import Attempt
from zaqar_lite.storage.opendata.engine import Stored
from zaqar_lite.storage.opendata.entries import Entry
from zaqar_lite.storage.opendata.format import keys
from zaqar_lite.storage.opendata.format.attempts import decode_attempt
from zaqar_lite.storage.opendata.format.encoding import CodecError
from zaqar_lite.storage.opendata.reading import readable
from zaqar_lite.storage.opendata.state import State

logger = logging.getLogger(__name__)


def has_kept(entry: Entry) -> bool:
    """Whether there is something to read of an entry's attempts."""
    return entry.past is not None and bool(entry.past.kept)


async def read(db: State, entries: Sequence[Entry]) -> Mapping[int, Sequence[Attempt]]:
    """Read the attempts of entries as they are now, by position; one that is damaged is left out.

    An attempt that goes meanwhile, with its message, is left out too.
    """
    wanted: dict[int, list[bytes]] = {}
    stored: dict[bytes, Stored] = {}
    absent: list[bytes] = []
    for entry in entries:
        past = entry.past
        if past is None or not past.kept:
            continue
        wanted[entry.position] = [keys.attempt_key(past.history, one.number) for one in past.kept]
        for key in wanted[entry.position]:
            value = db.puts.get(key) or db.written.puts.get(key)
            if value is None:
                absent.append(key)
            else:
                stored[key] = value
    if absent:
        stored.update(await db.engine.get(absent))
    return {
        position: [attempt for key in of_entry if (attempt := _decode(stored, key)) is not None]
        for position, of_entry in wanted.items()
    }


def _decode(stored: Mapping[bytes, Stored], key: bytes) -> Attempt | None:
    value = stored.get(key)
    if value is None:
        return None
    try:
        return decode_attempt(readable(stored, key))
    except CodecError as exc:
        logger.error("damaged: %s", exc)
        return None

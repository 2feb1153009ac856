"""The default driver: one state machine over SQL tables, in RAM or in a file.

    memory://            in RAM: everything is lost with the process
    embedded:///path     a file in a local directory; embedded:path is relative

`schema.sql` says what the tables hold; read it first. `database.py` runs operations as steps of
batches and makes these durable; `place.py` is where they lie. `messages.py` and `records.py` are
the two stores. Below them is a module for each intention: `posting.py` (with `rows.py`),
`claiming.py` (handing out), `claims.py` (the claim itself), `settling.py` (leaving a claim or the
queue), `reading.py`, `importing.py`; and for what time does: `expiring.py` in one queue,
`sweeping.py` in all, `history.py` in the lists of what is over. An operation is a function of a few
statements that runs without an await, so it is one atomic step.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.sql.database import Database
from zaqar_lite.storage.sql.messages import SqlMessageStore
from zaqar_lite.storage.sql.place import InFile, InRam
from zaqar_lite.storage.sql.records import SqlManagementStore

DISK_RESERVE = "disk_reserve"
"""The option of embedded:// for the bytes of the disk that only who empties the store may use."""


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one database, not yet opened.

    Raises:
        ConfigurationError: the URI is wrong.
    """
    db = Database(place_of(uri, options.extra.get(DISK_RESERVE)), clock, options)
    return SqlMessageStore(db), SqlManagementStore(db)


def place_of(uri: str, reserve: object = None) -> InRam:
    """Where the tables of a URI lie; `reserve` is the option DISK_RESERVE, in bytes.

    Raises:
        ConfigurationError: the URI or the option is wrong.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() == "memory":
        if any(parts[1:]):
            raise ConfigurationError(
                "The memory store has nothing to configure: write 'memory://', and nothing more."
            )
        return InRam()
    if reserve is not None and (isinstance(reserve, bool) or not isinstance(reserve, int)):
        raise ConfigurationError(f"{DISK_RESERVE} must be a number of bytes, such as 67108864.")
    return InFile(directory_of(uri), reserve=reserve)


def directory_of(uri: str) -> Path:
    """The directory that a URI names.

    Raises:
        ConfigurationError: it names none, or one that can't be used.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as exc:
        raise ConfigurationError("The store's URI can't be read.") from exc
    if parts.query or parts.fragment:
        raise ConfigurationError(f"The store's URI takes no query: {shown(uri)}.")
    path = unquote(parts.path)
    if parts.netloc or not path or path == "/":
        raise ConfigurationError(
            f"Name a directory: {parts.scheme}:///absolute/path or {parts.scheme}:relative/path, "
            f"not {shown(uri)}."
        )
    directory = Path(path)
    try:
        directory.resolve()
        (directory / "lock").stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # whether it can be made is found when it is
    except (OSError, ValueError, RuntimeError) as exc:  # also a NUL, or a link that leads to itself
        raise ConfigurationError(f"The store's directory can't be used: {exc}.") from exc
    return directory

"""The driver of OpenData-Queue RFC 0001: its records over a small key-value engine.

    opendata+slatedb:///path  SlateDB in a local directory (extra `slatedb`)
    opendata+s3://bucket/prefix  SlateDB in an object store (extra `slatedb`)

The records' bytes are in `format/` (`keys.py` lists them), the engine below them in `slatedb/`,
behind `engine.py`. `state.py` is what operations may touch: queues, ids, and the batch
that gathers. All records of queues are in memory too (`storage/records.py`); a queue that has
nothing else is made when an operation asks for it (`queues.py`). A queue (`queue.py`) consists of
pages of up to 128 entries, one record each (`checkpoint.py`). A page that is not in memory is known
by its bounds and a summary (`paging.py`); the pages of all queues share one bounded cache
(`queues.py`). A payload and its entry of the metadata log are written once. An operation waits
until what it needs is in memory, changes it in one step of the event loop, and is answered when its
batch is durable (`committer.py`). A deadline takes effect at its instant, whether or not anything
was tidied up by then; claims and the sweep tidy up in bounded steps (`due.py`), and the sweep
visits only queues in which something is due (`queues.py`). `database.py` is on top: it opens the
store by `loading.py` and `recovery.py`, writes the batches, and restores the memory when a batch
fails.
"""

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.opendata.database import Database, OpenDataManagementStore
from zaqar_lite.storage.opendata.engine import Engine
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.sql import directory_of
from zaqar_lite.storage.sql.place import FILE_NAME, OLD_FILE_NAME

if TYPE_CHECKING:
    from zaqar_lite.storage.opendata.slatedb import SlateDbEngine


_FOLDER = "slatedb"
"""The folder of a SlateDB store in its directory."""


def create(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the two stores over one database, not yet opened.

    Raises ConfigurationError: the URI is wrong, or its library is not installed.
    """
    db = Database(create_engine(uri), clock, options)
    return OpenDataMessageStore(db), OpenDataManagementStore(db)


def create_engine(uri: str, *, must_exist: bool = False) -> Engine:
    """Make the engine of a URI, not yet opened.

    `must_exist` refuses a directory that holds no store, where opening would make one. Raises
    ConfigurationError: the URI is wrong, its library is not installed, or there is no store.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() == "opendata+s3":
        if parts.query or parts.fragment:
            raise ConfigurationError(f"The store's URI takes no query: {shown(uri)}.")
        if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
            raise ConfigurationError(
                "Name a bucket: opendata+s3://bucket/prefix; its keys are in the environment."
            )
        return _slatedb().in_bucket(parts.netloc, unquote(parts.path).strip("/"))
    directory = directory_of(uri)
    if must_exist and not (directory / _FOLDER).exists():
        raise ConfigurationError(f"There is no store at {directory}.")
    if any((directory / name).exists() for name in (FILE_NAME, OLD_FILE_NAME)):
        raise ConfigurationError(
            f"{directory} holds a SQLite store: open it with embedded://{directory}, or give "
            "the SlateDB store a directory of its own."
        )
    return _slatedb().in_directory(directory / _FOLDER)


def _slatedb() -> "type[SlateDbEngine]":
    try:
        from zaqar_lite.storage.opendata.slatedb import SlateDbEngine  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            "This store needs the Python package 'slatedb': pip install 'zaqar-lite[slatedb]'."
        ) from exc
    return SlateDbEngine

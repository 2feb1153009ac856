"""The driver of OpenData-Queue RFC 0001: its records over a small key-value engine.

    opendata+slatedb:///path  SlateDB in a local directory (extra `slatedb`)
    opendata+s3://bucket/prefix  SlateDB in an object store (extra `slatedb`)

The records are the truth. The tables of `storage/sql` are their working copy, made anew at each
start, and run all operations. `database.py` is on top. At a start `loading.py` fills the tables
from the records, and `routing.py` adds what other writers put into the metadata log. Before a batch
is committed in the tables, `recorder.py` encodes the records that it changes, by the pages of
`pages.py`; it is answered when the engine has made them durable. `messages.py` is the message
store. The records' bytes are in `format/` (`keys.py` lists them), ids in `ids.py`, the engine in
`slatedb/`, behind `engine.py`.
"""

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zaqar_lite.domain.addresses import shown
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore
from zaqar_lite.storage.opendata.database import Database
from zaqar_lite.storage.opendata.messages import OpenDataMessageStore
from zaqar_lite.storage.sql import directory_of
from zaqar_lite.storage.sql.place import FILE_NAME, OLD_FILE_NAME
from zaqar_lite.storage.sql.records import SqlManagementStore

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
    return OpenDataMessageStore(db), SqlManagementStore(db)


def create_engine(uri: str, *, must_exist: bool = False) -> "SlateDbEngine":
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

"""Find a driver by the scheme of a store's URI.

Drivers are named as strings and imported only when they are chosen; a missing library becomes a
ConfigurationError that names the extra to install.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast
from urllib.parse import urlsplit

from zaqar_lite.domain.addresses import is_ambiguous
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.management import ManagementStore


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver package: where its `create` is, the extra it needs, how it may be used.

    `shared` tells whether several server processes may use one store; a driver that is not
    refuses `--workers` above 1. `options` names the driver's own settings.
    """

    name: str
    module: str
    schemes: tuple[str, ...]
    extra: str
    shared: bool
    options: tuple[str, ...] = ()


DRIVERS: tuple[Driver, ...] = (
    Driver("memory", "zaqar_lite.storage.sql", ("memory",), "server", shared=False),
    Driver(
        "embedded",
        "zaqar_lite.storage.sql",
        ("embedded", "opendata+sqlite"),
        "server",
        shared=False,
        options=("disk_reserve",),
    ),
    Driver(
        "opendata",
        "zaqar_lite.storage.opendata",
        ("opendata+slatedb", "opendata+s3"),
        "slatedb",
        shared=False,
    ),
    Driver(
        "redis",
        "zaqar_lite.storage.redis",
        ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"),
        "redis",
        shared=True,
    ),
    Driver(
        "mongodb",
        "zaqar_lite.storage.mongodb",
        ("mongodb", "mongodb+srv"),
        "mongodb",
        shared=True,
        options=("database", "collection_prefix", "create_indexes"),
    ),
    Driver(
        "swift",
        "zaqar_lite.storage.swift",
        ("swift+http", "swift+https"),
        "swift",
        shared=True,
        options=("coordination_url",),
    ),
)


class CreateStores(Protocol):
    """The one function of a driver package: make its two stores, not yet opened.

    The stores of one call share their connections; opening and closing either is idempotent
    and counted by the driver.
    """

    def __call__(
        self, uri: str, *, clock: Clock, options: StoreOptions
    ) -> tuple[MessageStore, ManagementStore]:
        """Make the stores for `uri`.

        Raises:
            ConfigurationError: the URI or an option is wrong; says what and how to mend it.
        """


def find_driver(uri: str) -> Driver:
    """Find the driver of a URI.

    Raises:
        ConfigurationError: it is no URI, or no driver has its scheme; the text lists those there
            are.
    """
    try:
        scheme = urlsplit(uri).scheme.lower()
    except ValueError as exc:  # its text may hold a password
        raise ConfigurationError(
            "The store's URI can't be read: write scheme://host/path, an IPv6 address in [ ]."
        ) from exc
    if is_ambiguous(uri):
        raise ConfigurationError(
            "The store's URI has an '@' behind its host: in a user or a password, and in a query, "
            "write %40 for '@', %2F for '/', %3F for '?' and %23 for '#'."
        )
    for driver in DRIVERS:
        if scheme in driver.schemes:
            return driver
    known = ", ".join(f"{scheme}://" for driver in DRIVERS for scheme in driver.schemes)
    raise ConfigurationError(
        f"No store driver for a URI of scheme {scheme!r}; there are {known}. For a directory "
        "write embedded:PATH."
    )


def create_stores(
    uri: str, *, clock: Clock, options: StoreOptions
) -> tuple[MessageStore, ManagementStore]:
    """Make the message store and the management store of a URI, not yet opened.

    Raises:
        ConfigurationError: unknown scheme, missing library, wrong option, or more workers than
            a single-process store can have.
    """
    driver = find_driver(uri)
    if options.workers > 1 and not driver.shared:
        raise ConfigurationError(
            f"The {driver.name} store lives in one process, so it cannot serve "
            f"{options.workers} workers: use --workers 1, or a store that is shared "
            "(Redis, MongoDB, Swift)."
        )
    try:
        module = import_module(driver.module)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("zaqar_lite"):
            raise
        raise ConfigurationError(
            f"The {driver.name} store needs the Python package {exc.name!r}: "
            f"pip install 'zaqar-lite[{driver.extra}]'."
        ) from exc
    create = cast(CreateStores, module.create)
    return create(uri, clock=clock, options=options)

"""One pool of connections for the two stores of a `create`, as configured; the server's clock."""

import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from zaqar_lite.domain.addresses import without_secrets
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.storage.base import MAX_EXAMINED
from zaqar_lite.storage.mongodb import indexes
from zaqar_lite.storage.mongodb.errors import translated
from zaqar_lite.storage.mongodb.indexes import Document
from zaqar_lite.storage.mongodb.transactions import SessionPool

_CODEC: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
DEFAULTS: Mapping[str, Any] = {
    "w": "majority",
    "wTimeoutMS": 10_000,
    "serverSelectionTimeoutMS": 10_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 60_000,
    "appName": "zaqar-lite",
}
"""Client options that hold unless the URI names them; the URI wins."""

_OPTIONS = {"database": str, "collection_prefix": str, "create_indexes": bool}
Session = AsyncClientSession | None
"""The session of a transaction, or of one view of a secondary; None without either."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A checked configuration; `uri` may hold a password and is never shown.

    `client_options` are DEFAULTS without those that the URI sets.
    """

    uri: str
    database: str
    prefix: str
    create_indexes: bool
    client_options: Mapping[str, Any]


def read_configuration(uri: str, extra: Mapping[str, Any]) -> Configuration:
    """Check a URI and the driver's options.

    `database` (default: the URI's path, else `zaqar`), `collection_prefix` (default `zaqar_`),
    `create_indexes` (default true; false only checks that they are there).

    Raises:
        ConfigurationError: names the option and what it may be.
    """
    for name, value in extra.items():
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"The mongodb store has no option {name!r}; it has {', '.join(_OPTIONS)}."
            )
        if not isinstance(value, kind := _OPTIONS[name]):
            raise ConfigurationError(f"The mongodb option {name} must be a {kind.__name__}.")
    parts = urlsplit(uri)
    in_uri = {name.lower(): value for name, value in parse_qsl(parts.query)}
    if in_uri.get("w") == "0":
        raise ConfigurationError(
            "The mongodb store can't work with w=0: nobody would learn whether a write happened. "
            "Use w=majority (the default) or w=1."
        )
    return Configuration(
        uri,
        extra.get("database") or parts.path.strip("/") or "zaqar",
        extra.get("collection_prefix", "zaqar_"),
        extra.get("create_indexes", True),
        {name: value for name, value in DEFAULTS.items() if name.lower() not in in_uri},
    )


class Connection:
    """The collections, opened by the first store that needs them, closed by the last.

    What decides who gets a message is read from the primary: by `queues`, `messages`, `keys` and
    `records`. `known_keys` reads there only what as many members have as a write waits for. What is
    only shown follows the URI's read preference and read concern: by `listed_queues` and `listed`.
    `counters` and `counted` are these two with the URI's read concern, from the primary.
    """

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        self._configuration = configuration
        self._clock = clock
        self._owners: set[int] = set()
        self._client: AsyncMongoClient[Document] | None = None

    async def open(self, owner: object) -> None:
        """Connect, create and check the indexes, for the first owner."""
        if self._client is None:
            client = self._connect()
            with translated():
                try:
                    await self._prepare(client)
                except BaseException:
                    await client.close()
                    raise
            self._client = client
            self.sessions.start()
        self._owners.add(id(owner))

    async def close(self, owner: object) -> None:
        """Close the pool when no owner is left."""
        self._owners.discard(id(owner))
        if not self._owners and self._client is not None:
            client, self._client = self._client, None
            await self.sessions.stop()
            await client.close()

    async def ping(self) -> None:
        """Ask the server for its time."""
        await self.now_ms()

    @property
    def client(self) -> AsyncMongoClient[Document]:
        """The client behind the collections."""
        return self.queues.database.client

    async def now_ms(self) -> int:
        """The server's clock, in milliseconds since 1970, with the offset added."""
        with translated():
            answer = await self.client.admin.command("hello", codec_options=_CODEC)
        return int(answer["localTime"]) + self._clock.offset_ms

    @asynccontextmanager
    async def one_view(self) -> AsyncIterator[Session]:
        """A causally consistent session for a listing's reads; none where all go to the primary.

        A secondary may lag behind the member that told the counter, and a reader would pass what is
        missing there. In this session the secondary waits until it has caught up.
        """
        if self.listed.read_preference == ReadPreference.PRIMARY:
            yield None
            return
        async with self.client.start_session(causal_consistency=True) as session:
            yield session

    @property
    def local_ms(self) -> int:
        """The clock of this process: for estimates only."""
        return self._clock.now_ms()

    @property
    def now(self) -> Document:
        """An expression for the server's clock as a date, with the offset added.

        It goes by way of a number, because SecantusDB can't compare `$$NOW` with a stored date.
        """
        return {"$toDate": {"$add": [{"$toLong": "$$NOW"}, self._clock.offset_ms]}}

    @property
    def now_us(self) -> Document:
        """An expression for the server's clock in microseconds, with the offset added."""
        return {"$multiply": [{"$add": [{"$toLong": "$$NOW"}, self._clock.offset_ms]}, 1000]}

    def _connect(self) -> AsyncMongoClient[Document]:
        """Make the client; pymongo only warns of an option it can't read, and we refuse it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                return AsyncMongoClient(
                    self._configuration.uri, **self._configuration.client_options
                )
        except (PyMongoError, ValueError, UserWarning) as exc:
            told = without_secrets(str(exc), self._configuration.uri)
            raise ConfigurationError(
                f"The MongoDB URI or an option in it is wrong: {told}"
            ) from exc

    async def _prepare(self, client: AsyncMongoClient[Document]) -> None:
        await _check_server(client)
        database = client.get_database(self._configuration.database, codec_options=_CODEC)

        def collection(kind: str, *, decides: bool = True) -> AsyncCollection[Document]:
            name = self._configuration.prefix + kind
            if not decides:
                return database[name]
            return database.get_collection(
                name, read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("local")
            )

        self.queues, self.messages = collection("queues"), collection("messages")
        self.keys, self.records = collection("keys"), collection("records")
        is_majority = database.write_concern.document.get("w") == "majority"
        self.known_keys = self.keys.with_options(
            read_concern=ReadConcern("majority" if is_majority else "local")
        )
        self.listed = collection("messages", decides=False)
        self.listed_queues = collection("queues", decides=False)
        self.counters = self.listed_queues.with_options(read_preference=ReadPreference.PRIMARY)
        self.counted = self.listed.with_options(read_preference=ReadPreference.PRIMARY)
        create = self._configuration.create_indexes
        await indexes.prepare(self.queues, indexes.QUEUES, create=create)
        await indexes.prepare(self.messages, indexes.MESSAGES, create=create, replaced="live")
        await indexes.prepare(self.keys, indexes.KEYS, create=create)
        await indexes.prepare(collection("writers"), indexes.WRITERS, create=create)
        self.sessions = SessionPool(collection("writers"))
        await indexes.prepare(self.records, indexes.RECORDS, create=create)


async def _check_server(client: AsyncMongoClient[Document]) -> None:
    """Refuse a standalone server: it has no transactions.

    Raises:
        ConfigurationError: tells how to make it a replica set of one.
    """
    answer = await client.admin.command("hello")
    if "setName" not in answer and answer.get("msg") != "isdbgrid":
        raise ConfigurationError(
            "The MongoDB server is standalone, and posts need transactions. Make it a replica set "
            "of one: start it as `mongod --replSet rs0`, then run `rs.initiate()` in mongosh once."
        )


async def find_first(
    collection: AsyncCollection[Document],
    match: Document,
    projection: Document | None,
    *,
    order: Sequence[str] = (),
    limit: int,
    hint: str,
) -> list[Document]:
    """Find the first documents that match, at most `limit`, in one answer of the server."""
    cursor = collection.find(
        match,
        projection,
        sort=[(name, 1) for name in order] or None,
        limit=limit,
        batch_size=limit,
        hint=hint,
    )
    return await cursor.to_list()


async def read_all(
    collection: AsyncCollection[Document],
    pipeline: Sequence[Mapping[str, Any]],
    *,
    hint: str,
    session: Session = None,
) -> list[Document]:
    """Run an aggregation and fetch all of its answer."""
    cursor = await collection.aggregate(list(pipeline), session, hint=hint, batchSize=MAX_EXAMINED)
    return await cursor.to_list()

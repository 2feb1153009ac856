"""MongoDB's protocol: a server that is given, a mongod that is found, or SecantusDB from PyPI.

`ZAQAR_TEST_MONGODB_URL` names a server of somebody else, `ZAQAR_TEST_MONGOD` a mongod to start
where none is on the PATH. No registry has a mongod, so SecantusDB comes last: it sorts in Python
whatever an index promises, so tests keep their queues under a few hundred messages.

Each process of a test run has a database of its own, which is in the URL and goes at the end.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from tests.services.environments import SECANTUSDB
from tests.services.process import Process, Service, free_port, make_data_directory, run_program

URL_VARIABLE, PROGRAM_VARIABLE = "ZAQAR_TEST_MONGODB_URL", "ZAQAR_TEST_MONGOD"
_NOT_INITIATED = 94


@dataclass(frozen=True, kw_only=True)
class MongoServer(Service):
    """A server that speaks MongoDB's protocol; `real` tells a mongod from the stand-in.

    `replica_set` is the name of the set where the server is ours.
    """

    real: bool
    replica_set: str | None = None

    @property
    def as_member(self) -> str:
        """The URL for a client that waits for a primary; a direct one takes what it finds."""
        if self.replica_set is None:
            return self.url
        return self.url.replace("directConnection=true", f"replicaSet={self.replica_set}")

    def stop(self) -> None:
        """End the service; of somebody else's server only our database goes."""
        super().stop()
        if not self.processes:
            with _client(self.url) as client:
                client.drop_database(client.get_default_database())


def mongo_from(url: str) -> MongoServer:
    """Describe a MongoDB server that somebody else runs."""
    return MongoServer(url=own_database(url), real=True)


def start_mongo(*, durable: bool = False) -> MongoServer:
    """Start a server whose fail points are on; `durable` has it sync before it answers."""
    data = make_data_directory("mongodb")
    (data / "db").mkdir()
    port, program = free_port(), find_mongod()
    if program is None:
        command, name = _secantusdb(data, port, durable=durable), "secantus"
    else:
        # Writes that a majority confirms are in its journal: it is durable in any case.
        command, name = (
            [
                *(program, "--replSet", "rs0", "--bind_ip", "127.0.0.1", "--port", str(port)),
                *("--dbpath", str(data / "db"), "--setParameter", "enableTestCommands=1"),
            ],
            "rs0",
        )
    return MongoServer(
        url=own_database(f"mongodb://127.0.0.1:{port}/?directConnection=true"),
        data=data,
        processes=(Process(command, log=data / "log", cwd=data),),
        ready=lambda: _is_primary(port),
        real=program is not None,
        replica_set=name,
    ).start()


def find_mongod() -> str | None:
    """The mongod to start, if there is one."""
    return os.environ.get(PROGRAM_VARIABLE) or shutil.which("mongod")


def describe_mongo() -> str:
    """Which server the tests use, and its version, for the report."""
    url, program = os.environ.get(URL_VARIABLE), find_mongod()
    if url:
        try:
            with _client(url, serverSelectionTimeoutMS=3_000) as client:
                return f"a server of yours, version {client.server_info()['version']}"
        except PyMongoError as exc:
            return f"a server of yours, which does not answer ({type(exc).__name__})"
    if program:
        words = run_program([program, "--version"])
        return f"{program}, {(words.stdout or words.stderr).splitlines()[0]}"
    return f"{SECANTUSDB.package} {SECANTUSDB.version}, a stand-in"


def own_database(url: str) -> str:
    """The URL with a database of this process's own."""
    parts = urlsplit(url)
    given = parts.path.strip("/")
    query = parts.query
    if parts.username and "authsource=" not in query.lower():
        # Without it the database of the URL is where the user is looked for.
        query = "&".join([*([query] if query else []), f"authSource={given or 'admin'}"])
    path = f"/{given or 'zaqar'}_test_{os.getpid()}"
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _secantusdb(data: Path, port: int, *, durable: bool) -> Sequence[str]:
    config = data / "secantusd.toml"  # an empty one of its own, so that it finds no other
    config.touch()
    return [
        SECANTUSDB.program("secantusd-py"),
        *("--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        *("--storage-path", str(data / "db"), "--log-level", "WARNING", "--enable-test-commands"),
        *(["--sync-on-commit"] if durable else []),
    ]


def _client(url: str, **options: Any) -> pymongo.MongoClient[Mapping[str, Any]]:
    return pymongo.MongoClient(url, **options)


def _is_primary(port: int) -> bool:
    """Tell whether the server takes writes; make it a replica set of one if it is none yet."""
    url = f"mongodb://127.0.0.1:{port}/?directConnection=true"
    try:
        with _client(url, serverSelectionTimeoutMS=300) as client:
            if client.admin.command("hello").get("isWritablePrimary"):
                return True
            try:
                client.admin.command("replSetGetStatus")
            except OperationFailure as exc:
                if exc.code == _NOT_INITIATED:
                    member = {"_id": 0, "host": f"127.0.0.1:{port}"}
                    client.admin.command("replSetInitiate", {"_id": "rs0", "members": [member]})
    except PyMongoError:
        pass  # not up yet
    return False

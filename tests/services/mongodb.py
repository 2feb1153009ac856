"""MongoDB's wire protocol: SecantusDB from PyPI, since no registry has a real mongod.

It calls itself a replica set of one node, hence `directConnection=true` in the URL. It sorts in
Python whatever an index promises, so tests keep their queues under a few hundred messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pymongo
from pymongo.errors import PyMongoError

from tests.services.environments import SECANTUSDB
from tests.services.process import Process, Service, free_port, make_data_directory


@dataclass(frozen=True, kw_only=True)
class MongoServer(Service):
    """A server that speaks MongoDB's protocol; `real` tells a mongod from the stand-in."""

    real: bool


def mongo_from(url: str) -> MongoServer:
    """Describe a MongoDB server that somebody else runs."""
    return MongoServer(url=url, real=True)


def start_mongo(*, options: Sequence[str] = ()) -> MongoServer:
    """Start SecantusDB; `options` are further words for it, such as `--sync-on-commit`."""
    program = SECANTUSDB.program("secantusd-py")
    data = make_data_directory("mongodb")
    config = data / "secantusd.toml"  # an empty one of its own, so that it finds no other
    config.touch()
    port = free_port()
    command = [
        *(program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        *("--storage-path", str(data / "db"), "--log-level", "WARNING", *options),
    ]
    (data / "db").mkdir()
    return MongoServer(
        url=f"mongodb://127.0.0.1:{port}/?directConnection=true",
        data=data,
        processes=(Process(command, log=data / "log", cwd=data),),
        ready=lambda: _answers(port),
        real=False,
    ).start()


def _answers(port: int) -> bool:
    client: pymongo.MongoClient[dict[str, object]] = pymongo.MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=300
    )
    try:
        return bool(client.admin.command("hello")["isWritablePrimary"])
    except PyMongoError:
        return False
    finally:
        client.close()

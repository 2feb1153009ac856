"""Look into the database beside the driver: with pymongo's synchronous client, as it is stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo.database import Database

from zaqar_lite.storage.mongodb import states

Document = dict[str, Any]


@contextmanager
def database_of(uri: str, name: str | None = None) -> Iterator[Database[Document]]:
    """The database of a store, or another one, by a client of the test's own."""
    client: pymongo.MongoClient[Document] = pymongo.MongoClient(uri)
    try:
        yield client.get_default_database() if name is None else client.get_database(name)
    finally:
        client.close()


def faults(database: Database[Document]) -> list[str]:
    """Say what breaks the data layout: every message is in one state and has what belongs to it."""
    births = {document["_id"]: document for document in database["zaqar_queues"].find()}
    found: list[str] = []
    for document in database["zaqar_messages"].find({"s": {"$in": states.LIVE}}):
        queue = births.get(document["q"])
        if queue is None or not queue["b"] < document["k"]:
            continue  # of a life that is over: nobody sees it
        if (document["s"] in states.WAITING) != ("w" in document):
            found.append(f"state {document['s']} with w={document.get('w')}")
        if document["s"] == states.CLAIMED and not document.get("cid"):
            found.append("claimed by nobody")
        if document["k"] > queue["k"]:
            found.append("above the counter after all have answered")
    return found

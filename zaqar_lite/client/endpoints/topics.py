"""Topics: what a queue's endpoints don't have."""

from zaqar_lite.client import encoding
from zaqar_lite.client.endpoints.paths import next_marker, with_query
from zaqar_lite.client.models import Queue, QueuePage
from zaqar_lite.client.wire import Call, Request, Response


def list_topics(
    *,
    marker: str | None = None,
    limit: int | None = None,
    detailed: bool = False,
    name: str | None = None,
) -> Call[QueuePage]:
    """Read one page of topics, by name; `name` keeps those that contain it."""
    path = with_query(
        "/v2/topics", marker=marker, limit=limit, detailed=detailed or None, name=name
    )

    def read(response: Response) -> QueuePage:
        found = [
            Queue(entry["name"], entry["href"], metadata=entry.get("metadata"))
            for entry in encoding.objects(response, "topics")
        ]
        return QueuePage(found, next_marker(encoding.document(response)) if found else None)

    return Call(Request("GET", path, {}), read)

"""Keys of the server."""

from collections.abc import Iterable
from typing import Any

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import texts, whole
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.pages import page_of
from zaqar_lite.client.endpoints.paths import segment, with_query
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.models import AccessKey
from zaqar_lite.client.wire import Call, Page, Request, Response


def create_key(
    grants: Iterable[str],
    *,
    project: str | None = None,
    operator: bool = False,
    expires: int | None = None,
    description: str = "",
) -> Call[AccessKey]:
    """Make a key: of a project, of that of the request when None, or an operator's."""
    wanted: dict[str, object] = {"grants": texts("grants", grants), "description": description}
    if project is not None or operator:
        wanted["project"] = project
    if expires is not None:
        wanted["expires"] = whole("expires", expires)
    # Sent twice it would make two, one of which nobody knows.
    request = Request("POST", "/v2/keys", JSON_TYPE, dumps(wanted))
    return Call(request, _read, resend=False)


def list_keys(*, marker: str | None = None, limit: int | None = None) -> Call[Page[AccessKey]]:
    """List keys, after `marker`."""
    path = with_query("/v2/keys", marker=marker, limit=limit)
    return Call(Request("GET", path, {}), page_of("keys", _key))


def get_key(key_id: str) -> Call[AccessKey]:
    """Show a key."""
    return Call(Request("GET", _path(key_id), {}), _read)


def disable_key(key_id: str, *, disabled: bool) -> Call[AccessKey]:
    """Let a key open nothing, or again."""
    request = Request("PATCH", _path(key_id), JSON_TYPE, dumps({"disabled": disabled}))
    return Call(request, _read)


def rotate_key(key_id: str, *, overlap: int | None = None) -> Call[AccessKey]:
    """Make a key like this one, which then ends."""
    body = dumps({} if overlap is None else {"overlap": whole("overlap", overlap)})
    request = Request("POST", _path(key_id) + "/rotate", JSON_TYPE, body)
    return Call(request, _read, resend=False)


def delete_key(key_id: str) -> Call[None]:
    """Delete a key."""
    return Call(Request("DELETE", _path(key_id), {}), nothing)


def _path(key_id: str) -> str:
    return f"/v2/keys/{segment(key_id, 'the id of a key')}"


def _read(response: Response) -> AccessKey:
    return _key(encoding.document(response))


def _key(entry: Any) -> AccessKey:  # noqa: ANN401 - JSON is anything
    return AccessKey(
        entry["id"],
        entry["project"],
        tuple(entry["grants"]),
        encoding.instant(entry.get("created_at")),
        encoding.instant(entry.get("expires_at")),
        entry["disabled"],
        entry.get("description") or "",
        entry.get("key"),
    )

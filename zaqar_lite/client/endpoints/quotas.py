"""Quotas of projects."""

from collections.abc import Mapping

from zaqar_lite.client import encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.paths import segment
from zaqar_lite.client.endpoints.queues import JSON_TYPE, nothing
from zaqar_lite.client.models import ProjectQuota
from zaqar_lite.client.wire import Call, Request, Response


def show_quota(project: str | None) -> Call[ProjectQuota]:
    """Show the quotas of a project, or of that of the request."""
    path = "/v2/quota" if project is None else _path(project)
    return Call(Request("GET", path, {}), _read)


def set_quota(project: str, quotas: Mapping[str, int | None]) -> Call[ProjectQuota]:
    """Set quotas of a project in place of all that were."""
    return Call(Request("PUT", _path(project), JSON_TYPE, dumps(dict(quotas))), _read)


def reset_quota(project: str) -> Call[None]:
    """Give a project the default quotas."""
    return Call(Request("DELETE", _path(project), {}), nothing)


def _path(project: str) -> str:
    return f"/v2/quotas/{segment(project, 'the id of a project')}"


def _read(response: Response) -> ProjectQuota:
    document = encoding.document(response)
    return ProjectQuota(
        document["project"], document["quotas"], document["usage"], document.get("own")
    )

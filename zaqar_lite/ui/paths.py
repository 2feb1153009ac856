"""Addresses of the page, and of what they show in the API."""

from urllib.parse import quote

from starlette.requests import Request


def quoted(name: str) -> str:
    """Write a name as one part of an address."""
    return quote(name, safe="")


def project_address(request: Request) -> str:
    """Where the page shows the project; empty for a page of none."""
    name = request.path_params.get("project")
    return f"/ui/p/{quoted(name)}/" if name else ""


def queue_address(request: Request) -> str:
    """Where the page shows the queue; empty for a page of none."""
    name = request.path_params.get("queue")
    return f"{project_address(request)}q/{quoted(name)}/" if name else ""


def queue_path(request: Request) -> str:
    """Where the API has the queue."""
    return f"/v2/queues/{quoted(request.path_params['queue'])}"


def message_path(request: Request) -> str:
    """Where the API has the message."""
    return f"{queue_path(request)}/messages/{quoted(request.path_params['message'])}"


def job_path(request: Request) -> str:
    """Where the API has the job."""
    act = request.query_params.get("act", "redrive")
    kind = f"delayed/{quoted(act)}" if act != "redrive" else "redrives"
    return f"{queue_path(request)}/{kind}/{quoted(request.path_params['job'])}"

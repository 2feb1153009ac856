"""The routes of jobs: redrives, and acts on what is delayed."""

from zaqar_lite.api.routes import Route
from zaqar_lite.api.table.shared import QUEUE
from zaqar_lite.api.v2.jobs import JobHandlers
from zaqar_lite.domain.identity import Access, Verb

_LARGEST = 65_536


def job_routes(handlers: JobHandlers) -> tuple[Route, ...]:
    """The routes of both kinds of job."""
    return (
        *_routes(handlers, QUEUE + "/redrives", "redrive", "redrive"),
        *_routes(handlers, QUEUE + "/delayed/{act}", "delayed_act", "act on delayed messages"),
    )


def _routes(handlers: JobHandlers, path: str, name: str, what: str) -> tuple[Route, ...]:
    job = path + "/{job_id}"
    return (
        Route(
            "POST",
            path,
            handlers.begin,
            f"begin_{name}",
            f"Begin to {what}",
            (200, 202, 400, 404, 409, 413, 503),
            Access(f"jobs:{name}", Verb.MANAGE),
            body="Job",
            answer="JobShown",
            largest_body=_LARGEST,
        ),
        Route(
            "GET",
            path,
            handlers.list_jobs,
            f"list_{name}s",
            f"List the jobs that {what}",
            (200, 400, 404, 503),
            Access(f"jobs:list_{name}s", Verb.READ),
            answer="Jobs",
        ),
        Route(
            "GET",
            job,
            handlers.get,
            f"show_{name}",
            f"Show a job to {what}",
            (200, 400, 404, 503),
            Access(f"jobs:show_{name}", Verb.READ),
            answer="JobShown",
        ),
        Route(
            "DELETE",
            job,
            handlers.cancel,
            f"cancel_{name}",
            f"Cancel a job to {what}",
            (204, 400, 404, 409, 503),
            Access(f"jobs:cancel_{name}", Verb.MANAGE),
        ),
    )

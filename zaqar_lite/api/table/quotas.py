"""The routes of quotas."""

from zaqar_lite.api.routes import Route
from zaqar_lite.api.v2.quotas import QuotaHandlers
from zaqar_lite.domain.identity import Access, Verb

_PROJECT = "/v2/quotas/{project_id}"


def quota_routes(handlers: QuotaHandlers, *, admin: bool) -> tuple[Route, ...]:
    """The routes of quotas; those that set them are there in admin mode, or with authentication."""
    own = Route(
        "GET",
        "/v2/quota",
        handlers.own,
        "show_quota",
        "Show the project's quotas and usage",
        (200, 503),
        Access("quota:get", Verb.READ),
        answer="Quota",
    )
    if not admin:
        return (own,)
    return (
        own,
        Route(
            "GET",
            _PROJECT,
            handlers.get,
            "show_quotas",
            "Show a project's quotas and usage",
            (200, 400, 503),
            Access("quotas:get", Verb.ADMIN),
            answer="Quota",
        ),
        Route(
            "PUT",
            _PROJECT,
            handlers.set,
            "set_quotas",
            "Set a project's quotas",
            (200, 400, 413, 503),
            Access("quotas:update", Verb.ADMIN),
            body="Quotas",
            answer="Quota",
        ),
        Route(
            "DELETE",
            _PROJECT,
            handlers.reset,
            "reset_quotas",
            "Give a project the default quotas",
            (204, 400, 503),
            Access("quotas:delete", Verb.ADMIN),
        ),
    )

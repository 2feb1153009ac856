"""The routes of schedules."""

from zaqar_lite.api.routes import Parameter, Route
from zaqar_lite.api.table.shared import MARKER
from zaqar_lite.api.v2.schedules import ScheduleHandlers
from zaqar_lite.domain.identity import Access, Verb

_SCHEDULES = "/v2/schedules"
_SCHEDULE = _SCHEDULES + "/{schedule_name}"
_LARGEST = 65_536


def schedule_routes(handlers: ScheduleHandlers) -> tuple[Route, ...]:
    """The routes of schedules."""
    return (
        Route(
            "GET",
            _SCHEDULES,
            handlers.list_schedules,
            "list_schedules",
            "List schedules",
            (200, 400, 503),
            Access("schedules:get_all", Verb.READ),
            (MARKER, Parameter("limit", "KeyLimit", "How many schedules to answer at most.")),
            answer="Schedules",
        ),
        Route(
            "PUT",
            _SCHEDULE,
            handlers.put,
            "put_schedule",
            "Make or replace a schedule",
            (200, 201, 400, 409, 413, 503),
            Access("schedules:create", Verb.MANAGE),
            body="Schedule",
            answer="Schedule",
            largest_body=_LARGEST,
        ),
        Route(
            "GET",
            _SCHEDULE,
            handlers.get,
            "show_schedule",
            "Show a schedule",
            (200, 400, 404, 503),
            Access("schedules:get", Verb.READ),
            answer="Schedule",
        ),
        Route(
            "PATCH",
            _SCHEDULE,
            handlers.change,
            "change_schedule",
            "Change some of a schedule",
            (200, 400, 404, 409, 413, 503),
            Access("schedules:update", Verb.MANAGE),
            body="Schedule",
            answer="Schedule",
            largest_body=_LARGEST,
        ),
        Route(
            "DELETE",
            _SCHEDULE,
            handlers.delete,
            "delete_schedule",
            "End a schedule",
            (204, 400, 503),
            Access("schedules:delete", Verb.MANAGE),
        ),
        Route(
            "POST",
            _SCHEDULE + "/fire",
            handlers.fire,
            "fire_schedule",
            "Post a schedule's message now",
            (201, 400, 404, 413, 503),
            Access("schedules:fire", Verb.MANAGE),
            answer="Fired",
        ),
    )

"""The one place where the domain's errors become HTTP answers."""

import logging

from zaqar_lite.api.http import HttpError, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.domain.errors import (
    Conflict,
    Denied,
    Forbidden,
    Invalid,
    KeyReused,
    NotFound,
    QuotaReached,
    TooMany,
    Unavailable,
    Unsupported,
)

logger = logging.getLogger(__name__)
_DENIED = "You are not authorized to complete this action."
_TRY_AGAIN = " Please try again in a few seconds."


def to_response(error: Exception, *, invalid_title: str, request_id: str) -> Response:
    """Answer an error in Zaqar's form; anything unknown is a bug: logged, 500, no details."""
    http = _to_http(error, invalid_title)
    if http is None:
        logger.error("unexpected error in request %s", request_id, exc_info=error)
        http = HttpError(
            500, "Internal server error", f"Unexpected error; see {request_id} in the log."
        )
    if http.document is not None:
        return Response(http.status, to_json(http.document), http.headers)
    document: dict[str, object] = {"title": http.title}
    if http.description:
        document["description"] = http.description
    if http.link:
        document["link"] = http.link
    if http.index is not None:
        document["index"] = http.index
    return Response(http.status, to_json(document), ((b"vary", b"Accept"), *http.headers))


def _to_http(error: Exception, invalid_title: str) -> HttpError | None:  # noqa: PLR0911
    match error:
        case HttpError():
            return error
        case Invalid() | Unsupported():
            return HttpError(400, invalid_title, str(error))
        case Forbidden():
            return HttpError(403, "Unable to delete", str(error))
        case Denied():
            return HttpError(403, "Not authorized", _DENIED)
        case NotFound():
            return HttpError(404, "Not found", str(error))
        case KeyReused():
            return HttpError(409, "Resource conflict", str(error), index=error.index)
        case Conflict():
            return HttpError(409, "Resource conflict", str(error))
        case TooMany():
            retry = str(error.retry_after).encode()
            return HttpError(
                429, "Too many requests", str(error), headers=((b"retry-after", retry),)
            )
        case QuotaReached():
            return HttpError(403, "Quota reached", error.shown)
        case Unavailable():
            retry = str(error.retry_after).encode()
            return HttpError(
                503,
                "Service temporarily unavailable",
                f"{error.shown}{_TRY_AGAIN}",
                headers=((b"retry-after", retry),),
            )
    return None

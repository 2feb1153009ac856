"""The one place where the domain's errors become results."""

import logging

from zaqar_lite.api.request import Refused, Response
from zaqar_lite.domain.errors import (
    Conflict,
    Denied,
    DueChanged,
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
    refused = _refused(error, invalid_title)
    if refused is None:
        logger.error("unexpected error in request %s", request_id, exc_info=error)
        refused = Refused(
            500, "Internal server error", f"Unexpected error; see {request_id} in the log."
        )
    if refused.document is not None:
        return Response(refused.status, refused.document, tuple(refused.headers))
    document: dict[str, object] = {"title": refused.title}
    if refused.description:
        document["description"] = refused.description
    if refused.link:
        document["link"] = refused.link
    if refused.index is not None:
        document["index"] = refused.index
    return Response(refused.status, document, ((b"vary", b"Accept"), *refused.headers))


def _refused(error: Exception, invalid_title: str) -> Refused | None:  # noqa: PLR0911
    match error:
        case Refused():
            return error
        case Invalid() | Unsupported():
            return Refused(400, invalid_title, str(error))
        case Forbidden():
            return Refused(403, "Unable to delete", str(error))
        case Denied():
            return Refused(403, "Not authorized", _DENIED)
        case NotFound():
            return Refused(404, "Not found", str(error))
        case KeyReused():
            return Refused(409, "Resource conflict", str(error), index=error.index)
        case DueChanged():
            return Refused(412, "Precondition failed", str(error))
        case Conflict():
            return Refused(409, "Resource conflict", str(error))
        case TooMany():
            retry = str(error.retry_after).encode()
            return Refused(429, "Too many requests", str(error), headers=((b"retry-after", retry),))
        case QuotaReached():
            return Refused(403, "Quota reached", error.shown)
        case Unavailable():
            retry = str(error.retry_after).encode()
            return Refused(
                503,
                "Service temporarily unavailable",
                f"{error.shown}{_TRY_AGAIN}",
                headers=((b"retry-after", retry),),
            )
    return None

"""Errors in the forms that SQS's clients know: of the JSON protocol, and of the one before it.

Clients of the JSON protocol read the shape (`__type`); older programs compare the code that the
header `x-amzn-query-error` names.
"""

import logging
from xml.sax.saxutils import escape

from zaqar_lite.api.request import Headers, Refused, Response
from zaqar_lite.domain.errors import (
    Conflict,
    Denied,
    Forbidden,
    Invalid,
    NotFound,
    QuotaReached,
    TooMany,
    Unavailable,
    Unsupported,
)

logger = logging.getLogger(__name__)
MEDIA_TYPE = b"application/x-amz-json-1.0"
_XML = b"text/xml"
_OLD = "AWS.SimpleQueueService."
_COMMON = {
    "AccessDenied": "AccessDeniedException",
    "InternalFailure": "InternalFailure",
    "InvalidAction": "UnknownOperationException",
    "InvalidClientTokenId": "UnrecognizedClientException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "RequestTimeTooSkewed": "RequestTimeTooSkewed",
    "SerializationException": "SerializationException",
    "ServiceUnavailable": "ServiceUnavailable",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}
"""The errors that all services of AWS have: their shapes by their codes."""
_CODES = {
    "QueueDoesNotExist": _OLD + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    **{
        name: _OLD + name
        for name in (
            *("BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest"),
            *("InvalidBatchEntryId", "MessageNotInflight", "TooManyEntriesInBatchRequest"),
            "UnsupportedOperation",
        )
    },
}
"""The codes that are not the names of the JSON protocol's shapes."""


class SqsError(Exception):
    """An error by the name of its shape, or by its code where all services have it."""

    def __init__(self, name: str, text: str, status: int = 400, headers: Headers = ()) -> None:
        super().__init__(text)
        self.name = name
        self.text = text
        self.status = status
        self.headers = headers

    @property
    def code(self) -> str:
        """What older programs compare."""
        return _CODES.get(self.name, self.name)

    @property
    def fault(self) -> str:
        """Whose fault it is."""
        return "Sender" if self.status < 500 else "Receiver"

    def in_batch(self, entry_id: str) -> dict[str, object]:
        """The outcome of an entry of a batch."""
        fault = self.status < 500
        return {"Id": entry_id, "Code": self.code, "Message": self.text, "SenderFault": fault}

    def as_json(self) -> Response:
        """Answer the error in the JSON protocol."""
        shape = _COMMON.get(self.name)
        kind = f"com.amazonaws.sqs#{self.name}" if shape is None else f"com.amazon.coral#{shape}"
        named = (b"x-amzn-query-error", f"{self.code};{self.fault}".encode())
        document = {"__type": kind, "message": self.text}
        return Response(self.status, document, (named, *self.headers), MEDIA_TYPE)

    def as_xml(self, request_id: str) -> Response:
        """Answer the error in the protocol that was there before JSON."""
        text = (
            '<?xml version="1.0"?><ErrorResponse '
            f'xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error><Type>{self.fault}</Type>'
            f"<Code>{self.code}</Code><Message>{escape(self.text)}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Response(self.status, text.encode(), self.headers, _XML)


def no_queue() -> SqsError:
    """The error of a queue that is not there."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def invalid(text: str) -> SqsError:
    """The error of a parameter that has a wrong value."""
    return SqsError("InvalidParameterValue", text)


def missing(name: str) -> SqsError:
    """The error of a parameter that is not there."""
    return SqsError("MissingParameter", f"The request must contain the parameter {name}.")


def unsupported(text: str) -> SqsError:
    """The error of what this server does not do."""
    return SqsError("UnsupportedOperation", text)


def translated(error: Exception, request_id: str) -> SqsError:  # noqa: PLR0911 - a kind a line
    """Say an error of the services in SQS's words; what is unknown is a bug: logged, no details."""
    match error:
        case SqsError():
            return error
        case Refused():
            return SqsError("InvalidParameterValue", error.description or error.title, error.status)
        case Unsupported():
            return unsupported(str(error))
        case NotFound():
            return no_queue()
        case Denied():
            return SqsError("AccessDenied", "Access to the resource is denied.", 403)
        case Invalid() | Conflict() | Forbidden():
            return invalid(str(error))
        case TooMany():
            return SqsError("RequestThrottled", str(error), 400, _retry(error.retry_after))
        case QuotaReached():
            return SqsError("OverLimit", error.shown, 403)
        case Unavailable():
            return SqsError("ServiceUnavailable", error.shown, 503, _retry(error.retry_after))
    logger.error("unexpected error in request %s", request_id, exc_info=error)
    return SqsError("InternalFailure", f"Unexpected error; see {request_id} in the log.", 500)


def _retry(seconds: int) -> Headers:
    return ((b"retry-after", str(seconds).encode()),)

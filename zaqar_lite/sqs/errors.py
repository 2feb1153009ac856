"""Errors in the forms that SQS's clients know: of the JSON protocol, and of the one before it.

Clients of the JSON protocol read the shape (`__type`); older programs compare the code that the
header `x-amzn-query-error` names.
"""

from xml.sax.saxutils import escape

from zaqar_lite.api.errors import to_response
from zaqar_lite.api.request import Headers, Response
from zaqar_lite.domain.errors import QuotaReached, Unsupported

MEDIA_TYPE = b"application/x-amz-json-1.0"
_SQS, _COMMON = "com.amazonaws.sqs", "com.amazon.coral.service"
_OLD = "AWS.SimpleQueueService."
_SAME = ("InternalFailure", "RequestTimeTooSkewed", "SerializationException", "ServiceUnavailable")
_SHAPES = {
    **{name: name for name in _SAME},
    "AccessDenied": "AccessDeniedException",
    "InvalidAction": "UnknownOperationException",
    "InvalidClientTokenId": "UnrecognizedClientException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}
"""The errors that all services of AWS have: their shapes by their codes."""
_AS_OLD = (
    "BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId",
    "MessageNotInflight", "TooManyEntriesInBatchRequest", "UnsupportedOperation",
)  # fmt: skip
_CODES = {
    **{name: _OLD + name for name in _AS_OLD},
    "QueueDoesNotExist": _OLD + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
}
"""The errors of SQS whose codes are not the names of their shapes."""
_BY_STATUS = {
    **dict.fromkeys((401, 403), "AccessDenied"),
    404: "QueueDoesNotExist",
    429: "RequestThrottled",
    500: "InternalFailure",
    503: "ServiceUnavailable",
}
"""What errors of the services are here, by the statuses that Zaqar's clients get."""


class SqsError(Exception):
    """An error by the name of its shape, or by its code where all services have it."""

    def __init__(self, name: str, text: str, status: int = 400, headers: Headers = ()) -> None:
        super().__init__(text)
        self.code = _CODES.get(name, name)
        self._kind = f"{_COMMON}#{_SHAPES[name]}" if name in _SHAPES else f"{_SQS}#{name}"
        self._text, self._status, self._headers = text, status, headers

    def in_batch(self, entry_id: str) -> dict[str, object]:
        """The outcome of an entry of a batch."""
        fault = self._status < 500
        return {"Id": entry_id, "Code": self.code, "Message": self._text, "SenderFault": fault}

    def as_json(self) -> Response:
        """Answer the error in the JSON protocol."""
        fault = "Sender" if self._status < 500 else "Receiver"
        headers = ((b"x-amzn-query-error", f"{self.code};{fault}".encode()), *self._headers)
        document = {"__type": self._kind, "message": self._text}
        return Response(self._status, document, headers, MEDIA_TYPE)

    def as_xml(self, request_id: str) -> Response:
        """Answer the error, which is the sender's, in the protocol that was there before JSON."""
        text = (
            '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
            f"<Error><Type>Sender</Type><Code>{self.code}</Code><Message>{escape(self._text)}"
            f"</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Response(self._status, text.encode(), self._headers, b"text/xml")


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


def translated(error: Exception, request_id: str) -> SqsError:
    """Say an error of the services in SQS's words; what is unknown is a bug, and logged."""
    if isinstance(error, SqsError):
        return error
    response = to_response(error, invalid_title="Invalid", request_id=request_id)
    status = response.status if response.status in (401, 403, 413, 431, 500, 503) else 400
    name = _BY_STATUS.get(response.status, "InvalidParameterValue")
    if isinstance(error, QuotaReached | Unsupported):
        name = "OverLimit" if isinstance(error, QuotaReached) else "UnsupportedOperation"
    text = response.document.get("description") or response.document.get("title", name)
    return SqsError(name, text, status, response.headers)

"""The lines of the log that are about single requests."""

import logging
import re

from zaqar_lite.api.request import Request
from zaqar_lite.domain.topics import is_topic

logger = logging.getLogger("zaqar_lite.access")
SLOW = 0.5
"""Seconds of work that make a request slow; time that it asked to wait does not count."""
FAILED = 400
_CALLER = re.compile(rb"req-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def log_request(request: Request, status: int, seconds: float, *, every: bool) -> None:
    """Log a request if that is asked for, if it was slow, or, at debug level, if it failed."""
    if seconds > SLOW and seconds > SLOW + request.waits:
        level, text = logging.WARNING, "slow request"
    elif every:
        level, text = logging.INFO, "request"
    elif status >= FAILED and logger.isEnabledFor(logging.DEBUG):
        level, text = logging.DEBUG, "request"
    else:
        return
    route = request.route
    fields = {
        "request_id": request.request_id,
        "method": request.method,
        "path": route.template if route else "unknown",
        "route": route.name if route else "unknown",
        "project": request.project,
        "queue": "" if is_topic(request.queue) else request.queue.name,
        "client": request.client_id,
        "status": status,
        "milliseconds": round(seconds * 1000, 3),
    }
    caller = request.headers.get(b"x-openstack-request-id", b"")
    if _CALLER.fullmatch(caller):
        fields["caller_request_id"] = caller.decode()
    trace = _TRACE.fullmatch(request.headers.get(b"traceparent", b""))
    if trace is not None:
        fields["trace_id"], fields["span_id"] = trace[1].decode(), trace[2].decode()
    logger.log(level, text, extra={"fields": fields})

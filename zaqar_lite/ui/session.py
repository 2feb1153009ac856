"""Who looks at the page, and whether a form comes from it.

A browser keeps the key that somebody signed in with, and a random token, as cookies that no script
and no other site sees. A form must carry the token and come from the page's own origin, so no other
site can act for who is signed in (cross-site request forgery).
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from zaqar_lite.ui.calls import Refused

TOKEN, KEY = "zaqar-lite-token", "zaqar-lite-key"
LARGEST_FORM = 1_048_576
"""Bytes."""
PATH = "/ui"
_MOST_FIELDS = 100


class Session(NamedTuple):
    """What the browser sent: its token and the key, if it is signed in."""

    token: str
    key: str | None

    def __repr__(self) -> str:
        """Show neither: both are secrets."""
        return f"Session(signed in: {self.key is not None})"


def read(request: Request) -> Session:
    """Return a request's session; one without a token gets one."""
    return Session(
        request.cookies.get(TOKEN) or secrets.token_urlsafe(24), request.cookies.get(KEY)
    )


def remember(response: Response, session: Session, *, secure: bool) -> None:
    """Have the browser keep a session until it is closed."""
    for name, value in ((TOKEN, session.token), (KEY, session.key)):
        if value is not None:
            response.set_cookie(
                name, value, path=PATH, httponly=True, samesite="strict", secure=secure
            )


async def form(request: Request, session: Session) -> Mapping[str, str]:
    """Read a form that was sent.

    Raises:
        Refused: it is too large, has no token, or comes from another origin.
    """
    size = request.headers.get("content-length", "")
    if not size.isdigit() or int(size) > LARGEST_FORM:
        raise Refused("Nothing was done", "a form has a length, of 1 MiB at most", 403)
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2] != request.headers.get("host"):
        raise Refused("Nothing was done", "the form comes from another site", 403)
    text = (await request.body()).decode("utf-8", "replace")
    try:
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        fields = {}
    sent = fields.pop("token", "").encode()
    if not hmac.compare_digest(sent, session.token.encode()):
        raise Refused("Nothing was done", "the form is not from this session: reload the page", 403)
    return fields

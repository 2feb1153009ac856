"""Who looks at the page, and whether a form comes from it.

A browser keeps the key that somebody signed in with, and a random token, as cookies that no script
and no other site sees. A form must carry the token and come from the page's own origin, so no other
site can act for who is signed in (cross-site request forgery).
"""

import hmac
import re
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
LONGEST_KEY = 3_800
"""Characters: browsers pass over a cookie of more than 4,096 bytes, without a word."""
PATH = "/ui"
_MOST_FIELDS = 100
_TOKEN = re.compile("[A-Za-z0-9_-]{32}")


class Session(NamedTuple):
    """What the browser sent: its token and the key, if it is signed in; `is_new` if no token."""

    token: str
    key: str | None
    is_new: bool = False

    def __repr__(self) -> str:
        """Show neither: both are secrets."""
        return f"Session(signed in: {self.key is not None})"


def read(request: Request) -> Session:
    """Return a request's session; one without a token of ours gets one."""
    token = request.cookies.get(TOKEN, "")
    is_new = _TOKEN.fullmatch(token) is None
    return Session(secrets.token_urlsafe(24) if is_new else token, request.cookies.get(KEY), is_new)


def remember(request: Request, response: Response, name: str, value: str) -> None:
    """Have the browser keep the token or the key until it is closed.

    Where it calls by https they are never sent in clear, even if a proxy ends its TLS.
    """
    seen = (request.url.scheme, request.headers.get("x-forwarded-proto"))
    secure = "https" in (*seen, request.headers.get("origin", "").partition(":")[0])
    response.set_cookie(name, value, path=PATH, httponly=True, samesite="strict", secure=secure)


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

"""Signed URLs as one address: what a page in a browser opens, which can set no headers.

Only streams of events take their signature from the query: addresses end up in logs, and this one
can only read, and ends.
"""

from urllib.parse import unquote_plus

from zaqar_lite.api.call import Call, Refused

_EVENTS = "/events"
"""What the path of every stream ends with."""
_SIGNATURE = b"url-signature"
_CARRIED = frozenset(
    (_SIGNATURE, *(b"url-paths", b"url-methods", b"url-expires"), *(b"x-project-id", b"client-id"))
)
_IDENTITY = (b"authorization", b"x-auth-token", b"x-service-token")


def take_signature(call: Call) -> None:
    """Take the headers of a signed request from its query, where that has a signature.

    Raises:
        Refused: 400, one of them is there twice, or beside another credential.
    """
    if not (call.query_string and call.path.endswith(_EVENTS)):
        return
    pairs = [pair.partition(b"=") for pair in call.query_string.split(b"&")[:256]]
    names = [name.lower() for name, _, _ in pairs]
    if _SIGNATURE not in names:
        return
    headers = call.headers
    if any(name in headers for name in (*_IDENTITY, _SIGNATURE)):
        raise Refused(
            400, "Invalid parameter", "Sign the query, or send a credential in a header: not both."
        )
    for name, (_, _, value) in zip(names, pairs, strict=True):
        if name not in _CARRIED:
            continue
        if names.count(name) > 1:
            raise Refused(
                400, "Invalid parameter", f"The parameter {name.decode()!r} may be given only once."
            )
        headers[name] = unquote_plus(value.decode("latin-1")).encode()
    call.query_string = b"&".join(
        b"%b=%b" % (name, value)
        for (name, _, value), lower in zip(pairs, names, strict=True)
        if lower not in _CARRIED
    )
    call.signed_query = True

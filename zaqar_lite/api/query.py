"""Query strings by upstream's rules (zaqar-behaviour 1.4).

Parameters with empty values are dropped; values split at commas; a scalar takes the last value.
"""

from urllib.parse import quote, unquote_plus

from zaqar_lite.api.http import HttpError, Request

_TRUE = frozenset(("true", "True", "t", "yes", "y", "1", "on"))
_FALSE = frozenset(("false", "False", "f", "no", "n", "0", "off"))
_MAX_PARAMETERS = 256
_MAX_DIGITS = 1_000


def parameters(request: Request) -> dict[str, list[str]]:
    """All parameters of a request, each with its values in order.

    Raises:
        HttpError: 400, there are more than 256; to leave some out would change what is asked for.
    """
    if not request.query_string:
        return {}
    found: dict[str, list[str]] = {}
    pairs = request.query_string.decode("latin-1").split("&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise HttpError(
            400, "Invalid parameter", f"A request may have at most {_MAX_PARAMETERS} parameters."
        )
    for pair in pairs:
        name, _, value = pair.partition("=")
        values = [_decode(part) for part in value.split(",") if part]
        if values:
            found.setdefault(_decode(name), []).extend(values)
    return found


def text(found: dict[str, list[str]], name: str) -> str | None:
    """The last value of a parameter."""
    values = found.get(name)
    return values[-1] if values else None


def whole(found: dict[str, list[str]], name: str, default: int) -> int:
    """The last value of a parameter as an integer.

    Raises:
        HttpError: 400, it is not one.
    """
    values = found.get(name)
    if not values:
        return default
    value = values[-1]
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise _invalid(name, "The value must be an integer.")
    return int(value)


def boolean(found: dict[str, list[str]], name: str) -> bool:
    """The last value of a parameter as a boolean; False when it is absent.

    Raises:
        HttpError: 400, it is not one of the words for true and false.
    """
    values = found.get(name)
    if not values:
        return False
    value = values[-1]
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise _invalid(name, "The value of the parameter must be 'true' or 'false'.")


def link(path: str, pairs: list[tuple[str, str]]) -> str:
    """Write a relative link with its parameters percent-encoded."""
    return path + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)


def flag(value: bool) -> str:
    """Write a boolean as links do."""
    return "true" if value else "false"


def _decode(part: str) -> str:
    if "%" not in part and "+" not in part:
        return part
    return unquote_plus(part)


def _invalid(name: str, why: str) -> HttpError:
    return HttpError(400, "Invalid parameter", f'The "{name}" parameter is invalid. {why}')

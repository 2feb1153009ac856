"""The parameters of a query string, by upstream's rules."""

from urllib.parse import unquote_plus

from zaqar_lite.api.refused import Refused

_MAX_PARAMETERS = 256
_LISTS_OF_IDS = {"ids", "claim_ids"}


def parse_query(query_string: bytes) -> dict[str, list[str]]:
    """All parameters of a query string, by upstream's rules (zaqar-behaviour 1.4).

    Those with empty values are dropped; values split at commas. Lists of ids split at encoded
    commas too: many libraries write a comma of a value as %2C.

    Raises:
        Refused: 400, there are more than 256; to leave some out would change what is asked for.
    """
    if not query_string:
        return {}
    found: dict[str, list[str]] = {}
    pairs = query_string.decode("latin-1").split("&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise Refused(
            400, "Invalid parameter", f"A request may have at most {_MAX_PARAMETERS} parameters."
        )
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in _LISTS_OF_IDS:
            values = [part for part in _decode(value).split(",") if part]
        else:
            values = [_decode(part) for part in value.split(",") if part]
        if values:
            found.setdefault(_decode(name), []).extend(values)
    return found


def _decode(part: str) -> str:
    if "%" not in part and "+" not in part:
        return part
    return unquote_plus(part)

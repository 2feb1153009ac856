"""Files of keys: a line `ID:KEY` for each, the current one first."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from zaqar_lite.domain.errors import ConfigurationError

_ID = re.compile(r"[a-zA-Z0-9_-]+")


def read_key_file(
    setting: str, path: Path, key_of: Callable[[str], bytes], sizes: range, wanted: str
) -> Mapping[str, bytes]:
    """Read the keys of a file by their ids, in their order; empty lines and `#` lines are none.

    `key_of` makes a key of its text, or raises ValueError; it has one of `sizes` (bytes), and
    `wanted` says what it must be. `setting` is what names the file.

    Raises:
        ConfigurationError: it can't be read or holds no key; names the line, never the key.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{setting} {path} can't be read: {error}.") from error
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, text = line.strip().partition(":")
        try:
            key = key_of(text)
        except ValueError:
            key = b""
        if len(key) not in sizes or key_id in keys or not _ID.fullmatch(key_id):
            raise ConfigurationError(
                f"Line {number} of {setting} {path} is no key: ID:KEY is needed, with an id of "
                f"letters, digits, '_' and '-' that no other line has, and {wanted}."
            )
        keys[key_id] = key
    if not keys:
        raise ConfigurationError(f"{setting} {path} holds no key.")
    return keys

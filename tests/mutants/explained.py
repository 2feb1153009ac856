"""Changes that live because nobody can see them, and why: (path, line, new) -> reason."""

EXPLAINED: dict[tuple[str, str, str], str] = {}

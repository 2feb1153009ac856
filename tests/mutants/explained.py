"""Changes that live because nobody can see them, and why: (path, line, new) -> reason."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "zaqar_lite/service/delivering.py",
        "if subscription.created_at <= note.posted_at + _SKEW_MS",
        "<",
    ): "A tolerance of ten seconds for clocks that differ: a millisecond of it is no promise.",
}

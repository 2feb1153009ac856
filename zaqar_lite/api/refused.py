"""The error that an action, or a check on the way to it, answers."""

from collections.abc import Iterable, Mapping


class Refused(Exception):
    """An answer that is an error: status, title and description of Zaqar's error form.

    `document` is the body of one that has another form.
    """

    def __init__(
        self,
        status: int,
        title: str,
        description: str | None = None,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        link: Mapping[str, str] | None = None,
        index: int | None = None,
        document: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.description = description
        self.headers = tuple(headers)
        self.link = link
        self.index = index
        self.document = document


def bad_body(description: str) -> Refused:
    """The error of a document that is not what the action takes."""
    return Refused(400, "Invalid request body", description)

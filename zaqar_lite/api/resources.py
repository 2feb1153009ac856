"""Records over HTTP: what all kinds of them have alike is declared once for each kind.

`resource` above a class of actions gives it the routes that list a kind's records, show one and
delete one. The class says in `Records` what these do; the verbs that a kind has of its own stand
beside them as routes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from zaqar_lite.api.render import next_page
from zaqar_lite.api.request import NO_CONTENT, Parameter, Request, Response
from zaqar_lite.api.routes import MARKER, route

R = TypeVar("R", bound=type["Records"])


class Records(Protocol):
    """What a class of actions says of its kind; a record is shown with its `id` or its `name`."""

    most: int
    """How many records a page has at most."""

    async def page(self, request: Request, marker: str | None, limit: int) -> Sequence[Any]:
        """Read the records after `marker`."""

    async def find(self, request: Request) -> Any:  # noqa: ANN401 - a record of any kind
        """Read the record that the path names; NotFound where there is none."""

    async def remove(self, request: Request) -> object:
        """Delete the record that the path names, if it is there."""

    def shown(self, record: Any, *, detailed: bool) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Write a record."""


class Resource(NamedTuple):
    """A kind of record: its noun, the path of one, and what the policy asks of who reads it.

    `usual` is how many records a page has that was asked for without a limit. `detail` is the flag
    that asks for more of each; without one all is shown, and of a single one too where `is_whole`.
    What `guards` names of list, show and delete has a 403 of its own. The home document names the
    list by `listed_as`, or by the plural.
    """

    noun: str
    path: str
    rule: str
    reads: str
    deletes: str
    limit: str = "ListLimit"
    usual: int = 10
    detail: Parameter | None = None
    is_whole: bool = False
    guards: tuple[str, ...] = ()
    listed_as: str = ""

    def __call__(self, actions: R) -> R:
        """Give a class of actions the routes that all kinds of records have."""
        noun, kind, form = self.noun, f"{self.noun}s", self.noun.title()
        limit = Parameter("limit", self.limit, f"How many {kind} to answer at most.")
        details = () if self.detail is None else (self.detail,)

        @route(
            f"GET {self.path.rpartition('/{')[0]} -> {form}s",
            f"{self.rule}:get_all {self.reads}",
            self._statuses("list", 200),
            (MARKER, limit, *details),
            name=f"list_{kind}",
            summary=f"List {kind}",
            rel=self.listed_as or kind,
        )
        async def listed(records: Records, request: Request) -> Response:
            asked = request.limit(records.most, self.usual)
            detailed = self._is_detailed(request)
            page = await records.page(request, request.text("marker"), asked)
            shown: list[dict[str, Any]] = []
            for record in page:
                shown.append(records.shown(record, detailed=detailed))
                await asyncio.sleep(0)  # the next instants of a rare schedule take 2 ms
            last = shown[-1] if shown else {}
            links = next_page(request, last.get("id") or last.get("name"))
            query = request.query_string
            at = request.path.encode() + (b"?" + query if query else b"")
            return Response(200, {kind: shown, "links": links}, ((b"content-location", at),))

        @route(
            f"GET {self.path} -> {form}",
            f"{self.rule}:get {self.reads}",
            self._statuses("show", 200, 404),
            () if self.is_whole else details,
            name=f"show_{noun}",
            summary=f"Show a {noun}",
            rel=noun,
        )
        async def show(records: Records, request: Request) -> Response:
            detailed = self.is_whole or self._is_detailed(request)
            record = await records.find(request)
            return Response(200, records.shown(record, detailed=detailed))

        @route(
            f"DELETE {self.path}",
            f"{self.rule}:delete {self.deletes}",
            self._statuses("delete", 204),
            name=f"delete_{noun}",
            summary=f"Delete a {noun}",
            rel=noun,
        )
        async def delete(records: Records, request: Request) -> Response:
            await records.remove(request)
            return NO_CONTENT

        for act in (listed, show, delete):
            setattr(actions, vars(act)["routes"][0].name, act)
        return actions

    def _statuses(self, verb: str, *statuses: int) -> tuple[int, ...]:
        return (*statuses, 403) if verb in self.guards else statuses

    def _is_detailed(self, request: Request) -> bool:
        return self.detail is None or request.flag(self.detail.name)

"""Every address and form of the page with every kind of credential, from the page's own routes."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api.conftest import Api, MakeApi
from tests.api.test_tokens import keys_file, settings, token
from zaqar_lite.ui.app import make_page
from zaqar_lite.ui.calls import Scope

pytestmark = pytest.mark.anyio
VALUES = {
    "project": "p",
    "queue": "orders",
    "message": "000660de486f45bea066b4b29e904223",
    "job": "000660de486f45bea066b4b29e904223",
}
OPEN = {"/ui", "/ui/", "/ui/static", "/ui/sign-in", "/ui/sign-out"}
"""They show nothing of anybody."""
OPERATORS = {"/ui/p/{project}/pools", "/ui/p/{project}/server"}
VERBS = ("send", "receive", "read", "manage", "admin")
QUEUE = "/ui/p/{project}/q/{queue}/"
FORMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "/ui/p/{project}/": (("manage", {"name": "made"}),),
    QUEUE: (
        ("send", {"act": "post", "body": "1"}),
        ("manage", {"act": "settings", "settings": '{"team": "a"}'}),
        ("manage", {"act": "set", "set._monitor": "yes"}),
        ("manage", {"act": "purge", "confirm": "orders"}),
        ("manage", {"act": "delete", "confirm": "orders"}),
    ),
    f"{QUEUE}m/{{message}}": (
        ("manage", {"act": "edit", "body": "2"}),
        ("manage", {"act": "delete"}),
    ),
    f"{QUEUE}dead": (("manage", {}),),
    f"{QUEUE}claims": (("receive", {"claim": "5d81e6c6b0c14e6d9a3f2b7c8d9e0f1a"}),),
    f"{QUEUE}jobs": (
        ("manage", {"act": "cancel", "confirm": "orders"}),
        ("manage", {"act": "fire", "confirm": "orders"}),
    ),
    f"{QUEUE}jobs/{{job}}": (("manage", {}),),
    "/ui/p/{project}/schedules": (
        ("manage", {"act": "make", "name": "n", "queue": "orders", "every": "1h", "body": "1"}),
        *(("manage", {"act": act, "name": "n"}) for act in ("fire", "pause", "resume", "end")),
    ),
    "/ui/p/{project}/pools": (
        ("operator", {"act": "weight", "name": "one", "weight": "1"}),
        ("operator", {"act": "drain", "name": "one"}),
    ),
}
"""What each form needs, and what is written into it."""


class Place(NamedTuple):
    """A page: its route, and an address of it."""

    template: str
    path: str
    has_form: bool


def places() -> list[Place]:
    async def nobody(scope: Scope, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    found = []
    for route in make_page(nobody, authenticates=True).routes:
        template = str(getattr(route, "path", ""))
        path = re.sub(r"{(\w+)}", lambda name: VALUES[name[1]], template)
        found.append(Place(template, path, "POST" in (getattr(route, "methods", None) or ())))
    return found


PLACES = [one for one in places() if one.template not in OPEN]


class Visitor:
    """A browser with a credential in its cookie."""

    def __init__(self, api: Api) -> None:
        del api.http.headers["X-Project-ID"]
        self.api = api

    async def make(self, *grants: str, project: str = "p", **more: Any) -> str:
        return await self.api.make_key(*grants, project=project, **more)

    async def look(self, path: str, key: str | None) -> httpx.Response:
        return await self._ask("GET", path, key)

    async def send(self, path: str, key: str | None, fields: dict[str, str]) -> httpx.Response:
        return await self._ask("POST", path, key, data={"token": "t" * 32, **fields})

    async def _ask(self, method: str, path: str, key: str | None, **more: Any) -> httpx.Response:
        self.api.http.cookies.clear()
        cookies = f"zaqar-lite-token={'t' * 32}" + (f"; zaqar-lite-key={key}" if key else "")
        origin = str(self.api.http.base_url).rstrip("/")
        headers = {"Cookie": cookies, "Origin": origin}
        answer = await self.api.http.request(method, path, headers=headers, **more)
        assert answer.status_code < 500, (path, answer.text)
        return answer


@pytest.fixture
async def visitor(make_api: MakeApi, tmp_path: Path) -> AsyncIterator[Visitor]:
    known = settings(keys_file(tmp_path), auth="keys, jwt", max_failed_logins=1_000_000)
    async with make_api(**known, admin_mode=True, pooling=True) as api:
        yield Visitor(api)


def is_sent_to_sign_in(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.headers.get("location")) == (303, "/ui/sign-in")


def test_every_form_of_the_page_is_named_here() -> None:
    assert {place.template for place in PLACES if place.has_form} == set(FORMS)


@pytest.mark.parametrize("state", ["none", "wrong", "expired", "disabled", "jwt"])
async def test_who_is_not_known_is_sent_to_sign_in(visitor: Visitor, state: str) -> None:
    key = await visitor.api.make_useless_key(state, project="p")
    if state == "jwt":
        key = token(aud="others", grants=["*:*"])
    for place in PLACES:
        answer = await visitor.look(place.path, key)
        assert is_sent_to_sign_in(answer), place.template
        for _, fields in FORMS.get(place.template, ()):
            assert is_sent_to_sign_in(await visitor.send(place.path, key, fields)), place.template


@pytest.mark.parametrize("kind", ["key", "jwt"])
async def test_who_is_of_another_project_sees_and_does_nothing_here(
    visitor: Visitor, kind: str
) -> None:
    key = await visitor.make("*:*", project="other")
    if kind == "jwt":
        key = token(project_id="other", grants=["*:*"])
    for place in PLACES:
        assert (await visitor.look(place.path, key)).status_code == 403, place.template
        for _, fields in FORMS.get(place.template, ()):
            answer = await visitor.send(place.path, key, fields)
            assert answer.status_code == 403, (place.template, fields)


@pytest.mark.parametrize("kind", ["key", "jwt"])
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_shows_its_pages_and_no_other(visitor: Visitor, verb: str, kind: str) -> None:
    grants = [f"{verb}:*"]
    key = await visitor.make(*grants) if kind == "key" else token(grants=grants)
    for place in PLACES:
        answer = await visitor.look(place.path, key)
        may = verb == "read" and place.template not in OPERATORS
        assert (answer.status_code != 403) == may, (place.template, answer.text)


async def test_a_form_needs_its_verb(visitor: Visitor) -> None:
    everything = await visitor.make("*:*")
    lacking = {verb: await visitor.make("*:*", f"!{verb}:*") for verb in VERBS}
    for place in PLACES:
        for verb, fields in FORMS.get(place.template, ()):
            key = lacking.get(verb, everything)
            answer = await visitor.send(place.path, key, fields)
            assert answer.status_code == 403, (place.template, fields, answer.text)
            may = everything if verb in lacking else visitor.api.operator
            answer = await visitor.send(place.path, may, fields)
            assert answer.status_code != 403, (place.template, fields, answer.text)

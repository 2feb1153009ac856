"""What the records of all kinds have alike: pages of a list, one, a change, and the end."""

import json
from typing import Any, NamedTuple

import pytest

from tests.api.conftest import Api
from tests.waiting import rounds_beside

pytestmark = pytest.mark.anyio
NAMES = ["c", "a", "b", "e", "d"]


class Kind(NamedTuple):
    """A kind: where its list is, a document, what is shown of it, and the same of a change.

    `again` is the status of making one anew; a kind without it has ids, not names. `absent` is the
    status of one that is not there. A page shows `detail` to who asks. `of_all` have no project.
    """

    path: str
    document: dict[str, Any]
    shown: dict[str, Any]
    change: Any
    changed: dict[str, Any]
    again: int | None = None
    absent: int = 404
    detail: str = ""
    of_all: bool = False

    @property
    def noun(self) -> str:
        return self.path.rpartition("/")[2]


PATCH = [{"op": "replace", "path": "/metadata/colour", "value": "green"}]
RED, GREEN = {"colour": "red"}, {"colour": "green", "_default_message_ttl": 3600}
PLAN = {"queue": "orders", "body": 1, "every": 60}
KINDS = [
    *(
        Kind(f"/v2/{noun}", RED, RED, PATCH, GREEN, 204, 200, "metadata")
        for noun in ("queues", "topics")
    ),
    Kind(
        "/v2/pools",
        {"uri": "redis://NAME:1/0", "weight": 7, "options": {"page": 1}},
        {"flavor": None, "uri": "redis://NAME:1/0", "weight": 7},
        {"weight": 0, "unknown": 1},
        {"weight": 0},
        *(201, 404, "options", True),
    ),
    Kind(
        "/v2/flavors",
        {"pool_list": ["pool-NAME"], "capabilities": {}},
        {"pool_list": ["pool-NAME"]},
        {"pool_list": ["two"], "x": 1},
        {"pool_list": ["two"]},
        *(201, 404, "capabilities"),
    ),
    Kind("/v2/schedules", PLAN, PLAN, {"paused": True}, {**PLAN, "paused": True, "next": []}, 200),
    Kind("/v2/keys", {"grants": ["read:a"]}, {}, {"disabled": True}, {"disabled": True}),
    Kind(
        "/v2/queues/orders/subscriptions",
        {"subscriber": "http://localhost/NAME", "options": {"a": 1}},
        {"subscriber": "http://localhost/NAME", "source": "orders", "options": {"a": 1}, "age": 0},
        {"ttl": 600},
        {"ttl": 600, "options": {"a": 1}},
    ),
]


def of(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A document of a name, which stands where it says NAME."""
    found: dict[str, Any] = json.loads(json.dumps(document).replace("NAME", name))
    return found


async def make(api: Api, kind: Kind, name: str) -> str:
    """Make a record; answer its name or its id."""
    if kind.noun == "flavors":
        for pool in (f"pool-{name}", "two"):
            document = {"uri": f"redis://{pool}:1/0", "weight": 1}
            await api.expect(201, "PUT", f"/v2/pools/{pool}", document)
    if kind.again is not None:
        path = f"{kind.path}/{name}"
        made = await api.expect(201, "PUT", path, of(kind.document, name))
        assert kind.noun == "schedules" or made.headers["location"] == path
        return name
    document = (await api.expect(201, "POST", kind.path, of(kind.document, name))).json()
    return str(document.get("id") or document["subscription_id"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
async def test_one_is_made_shown_changed_and_deleted(operated: Api, kind: Kind) -> None:
    name = await make(operated, kind, "a")
    path = f"{kind.path}/{name}"
    shown = (await operated.expect(200, "GET", path)).json()
    assert of(kind.shown, "a").items() <= shown.items()
    if kind.again is not None:
        await operated.expect(kind.again, "PUT", path, of(kind.document, "a"))
    changed = await operated.call("PATCH", path, kind.change)
    assert changed.status_code == (204 if kind.noun == "subscriptions" else 200), changed.text
    assert kind.noun != "pools" or kind.detail not in changed.json()
    shown = (await operated.expect(200, "GET", path)).json()
    assert kind.changed.items() <= shown.items()
    if not kind.of_all and kind.noun != "keys":
        elsewhere = await operated.expect(kind.absent, "GET", path, X_Project_ID="other")
        assert "green" not in elsewhere.text
    for _ in range(2):
        await operated.expect(204, "DELETE", path)
    gone = await operated.expect(kind.absent, "GET", path)
    assert "green" not in gone.text
    await operated.expect(404, "PATCH", path, kind.change)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
async def test_a_list_is_read_page_by_page_by_its_links(operated: Api, kind: Kind) -> None:
    made = [await make(operated, kind, name) for name in NAMES]
    for word, written in (("yes", "true"), ("True", "true"), ("0", "false"), ("False", "false")):
        asked, expected = "limit=2", "limit=2&"
        if kind.detail:
            asked, expected = f"limit=2&detailed={word}", f"limit=2&detailed={written}&"
        found, sizes, path = list[str](), [], f"{kind.path}?{asked}"
        while path:
            answer = await operated.expect(200, "GET", path)
            page = answer.json()
            assert answer.headers.get("content-location", path) == path
            found += [str(one.get("id") or one["name"]) for one in page[kind.noun]]
            sizes.append(len(page[kind.noun]))
            for one in page[kind.noun]:
                assert not kind.detail or (kind.detail in one) is (written == "true")
                assert "href" not in one or one["href"] == f"{kind.path}/{one['name']}"
            path = page["links"][0]["href"] if page["links"] else ""
            assert not path or path.startswith(f"{kind.path}?{expected}marker=")
        assert sizes == [2, 2, 1, 0]
        assert found == (made if kind.noun == "subscriptions" else sorted(made))
    if not kind.of_all:
        elsewhere = await operated.expect(200, "GET", kind.path, X_Project_ID="other")
        assert elsewhere.json() == {kind.noun: [], "links": []}


async def test_others_run_between_the_records_of_a_page(operated: Api) -> None:
    """To find the next instants of a rare schedule takes 2 ms."""
    for number in range(20):
        await operated.expect(201, "PUT", f"/v2/schedules/s{number}", PLAN)

    async def rounds(limit: int) -> int:
        return (await rounds_beside(operated.call("GET", f"/v2/schedules?limit={limit}")))[0]

    assert await rounds(20) - min([await rounds(1) for _ in range(3)]) >= 19

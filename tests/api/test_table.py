"""What holds for every route, generated from the table: bounds, methods and documents."""

import re
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api
from tests.api.test_matrix import VALUES, routes
from zaqar_lite.api.request import Route

pytestmark = pytest.mark.anyio
PATCH = "application/openstack-messaging-v2.0-json-patch"
METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")


def path_of(route: Route) -> str:
    return re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], route.template)


def values_of(schema: dict[str, Any], *, is_time: bool) -> tuple[list[object], list[object]]:
    """What a parameter may be at its bounds, and what it may not be."""
    if "maximum" in schema:
        least, most = schema["minimum"], schema["maximum"]
        numbers = ("-1", 2**64, "9" * 900, "x", "1.5", "%D9%A3")
        return [least, *([] if is_time else [most])], [least - 1, most + 1, *numbers]
    if schema.get("type") == "boolean":
        return ["true", "no"], ["None", "TRUE", "2"]
    return schema.get("enum", []), ["other"] if "enum" in schema else []


NEEDED = {"large": "true", "state": "failed", "seconds": "0", "pop": "1"}
"""What a query says beside the parameter that is tried, so that only this one can be wrong."""
MANY = ",".join(["a"] * 21)
QUERIES = {
    "GET messages": (f"ids={MANY}", "limit=21", "ids=" + MANY.replace(",", "%2C")),
    "DELETE messages": ("", "ids=%2C", "ids=a&pop=1", f"ids={MANY}", "pop=21"),
    "GET events": ("marker=x",),
    "GET depth": ("state=lost",),
    "POST claims": ("limit=21",),
}
"""What no schema says that a query may not be."""


async def send(api: Api, route: Route, content: bytes) -> httpx.Response:
    kind = {"Content-Type": PATCH} if route.body == "MetadataPatch" else {}
    return await api.http.request(route.method, path_of(route), content=content, headers=kind)


async def test_a_parameter_is_read_at_its_bounds_and_refused_beyond(operated: Api) -> None:
    schemas = (await operated.call("GET", "/openapi.json")).json()["components"]["schemas"]
    for route in routes():
        for one in route.parameters:
            if one.place != "query":
                continue
            good, wrong = values_of(schemas[one.schema], is_time=one.name in ("wait", "seconds"))
            beside = {
                other.name: NEEDED[other.name] for other in route.parameters if other.name in NEEDED
            }
            if route.body not in (None, "Claim"):
                good = []  # without a document it is refused anyway
            for value in (*good, *wrong):
                query = "&".join(f"{k}={v}" for k, v in {**beside, one.name: value}.items())
                path = f"{path_of(route)}?{query}"
                answer = await operated.http.request(route.method, path)
                told = (path, answer.text)
                assert (answer.status_code == 400) == (value in wrong), told


def tried(schema: dict[str, Any]) -> list[tuple[Any, bool]]:
    """Texts or numbers at the bounds, and next to them; and whether they fit."""
    kind = "Length" if "maxLength" in schema else "imum"
    bounds = schema[f"min{kind}"], schema[f"max{kind}"]
    return [
        ("x" * number if kind == "Length" else number, fits)
        for bound, outwards in zip(bounds, (-1, 1), strict=True)
        for number, fits in ((bound, True), (bound + outwards, False))
    ]


async def test_documents_and_headers_are_taken_at_their_bounds(operated: Api) -> None:
    described = (await operated.call("GET", "/openapi.json")).json()
    schemas = described["components"]["schemas"]
    message = schemas["Messages"]["properties"]["messages"]["items"]["properties"]
    lease, subscriber = (
        schemas["Claim"]["properties"],
        schemas["Subscription"]["properties"]["subscriber"],
    )
    headers = described["paths"]["/v2/queues/{queue_name}"]["get"]["parameters"]
    (project,) = (one["schema"] for one in headers if one["name"] == "X-Project-ID")
    longest = [project, message["idempotency_key"], message["group"], subscriber]
    assert [one["maxLength"] for one in longest] == [256, 128, 128, 2_048]
    for value, fits in tried(project):
        answer = await operated.call("GET", "", X_Project_ID=value)
        assert (answer.status_code == 200) is fits, (len(value), answer.text)
    for place in ("/v2/queues/orders/messages", "/v2/topics/orders/messages"):
        await operated.call("PUT", place.removesuffix("/messages"), {"_default_message_delay": 1})
        for name in ("ttl", "delay", "idempotency_key", "group"):
            for value, fits in tried(message[name]):
                document = {"messages": [{"body": 1, name: value}]}
                answer = await operated.call("POST", place, document)
                told = (place, name, value, answer.text)
                assert answer.status_code == (201 if fits else 400), told
    for size, status in ((2_048, 201), (2_049, 400)):
        hook = {"subscriber": "http://example.org/".ljust(size, "x")}
        await operated.expect(status, "POST", "/v2/queues/orders/subscriptions", hook)
    for name in ("ttl", "grace"):
        for value, fits in tried(lease[name]):
            answer = await operated.call("POST", "/v2/queues/orders/claims", {name: value})
            assert (answer.status_code < 400) is fits, (name, value, answer.text)


async def test_a_query_keeps_the_rules_that_no_schema_says(operated: Api) -> None:
    for asked, queries in QUERIES.items():
        method, below = asked.split()
        for place in ("queues", "topics")[: 2 if below == "messages" else 1]:
            for query in queries:
                path = f"/v2/{place}/orders/{below}?{query}"
                await operated.expect(400, method, path)


async def test_a_document_is_strict_json_of_its_form(operated: Api) -> None:
    for route in routes():
        if route.body is None:
            continue
        other = b"{}" if route.body == "MetadataPatch" else b"[1]"
        huge = b'{"a":9223372036854775808}'
        for wrong in (b"{", b"3", b'"x"', b"\xff", b'{"a": NaN}', huge, other):
            answer = await send(operated, route, wrong)
            assert answer.status_code == 400, (route.name, wrong, answer.text)
        answer = await send(operated, route, b" " * (route.largest_body + 1))
        assert answer.status_code in (400, 413), route.name
        assert "are allowed" in answer.json()["description"]


async def test_no_path_has_another_method_than_it_says(operated: Api) -> None:
    served: dict[str, set[str]] = {}
    for route in routes():
        served.setdefault(path_of(route), set()).add(route.method)
    for path, methods in served.items():
        for other in set(METHODS) - methods:
            answer = await operated.http.request(other, path)
            assert answer.status_code == 405, (other, path)
            assert set(answer.headers["allow"].split(", ")) == {*methods, "OPTIONS"}

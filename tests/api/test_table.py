"""What holds for every route, generated from the table: bounds, methods and documents."""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.api.conftest import Api
from tests.api.test_matrix import VALUES, routes
from zaqar_lite.api.request import Route

pytestmark = pytest.mark.anyio
COUNTS = {"limit", "pop", "count"}
"""Parameters that say how many."""
PATCH = "application/openstack-messaging-v2.0-json-patch"
METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")


def path_of(route: Route) -> str:
    return re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], route.template)


def counting() -> Iterator[tuple[Route, str]]:
    """The routes that are told how many, and by which parameter."""
    for route in routes():
        for parameter in route.parameters:
            if parameter.name in COUNTS:
                state = "&state=failed" if route.template.endswith("/deliveries") else ""
                yield route, f"{path_of(route)}?{parameter.name}={{}}{state}"


async def send(api: Api, route: Route, content: bytes) -> httpx.Response:
    kind = {"Content-Type": PATCH} if route.body == "MetadataPatch" else {}
    return await api.http.request(route.method, path_of(route), content=content, headers=kind)


async def test_how_many_is_a_number_within_bounds(operated: Api) -> None:
    for route, path in counting():
        for wrong in ("0", "-1", "1001", str(2**64), "9" * 900, "x", "1.5", "%D9%A3"):
            answer = await operated.http.request(route.method, path.format(wrong))
            assert answer.status_code == 400, (route.name, wrong, answer.text)


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


async def test_a_flag_is_a_word_for_yes_or_no(operated: Api) -> None:
    for route in routes():
        for parameter in route.parameters:
            if parameter.schema != "Flag":
                continue
            for wrong in ("None", "TRUE", "2"):
                path = f"{path_of(route)}?{parameter.name}={wrong}"
                answer = await operated.http.request(route.method, path, json=None)
                assert answer.status_code in (400, 404), (route.name, parameter.name, answer.text)

"""The documents say what the program does: routes, statuses, settings, samples."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

from zaqar_lite.api.application import Application
from zaqar_lite.domain.limits import Limits
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.settings import Settings

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "zaqar_lite"
SOURCE = ROOT / "api-ref" / "source"
PAGES = (
    "service",
    "queues",
    "messages",
    "events",
    "topics",
    "claims",
    "subscriptions",
    "keys",
    "quotas",
    "jobs",
    "schedules",
    "pools",
)
_METHOD = re.compile(r"^\.\. rest_method:: (\w+) (\S+)$", re.MULTILINE)
_STATUS = re.compile(r"^   - (\d{3})$", re.MULTILINE)


def sections() -> dict[tuple[str, str], str]:
    """The text of each documented method, by method and path."""
    found: dict[tuple[str, str], str] = {}
    for page in PAGES:
        text = (SOURCE / f"{page}.rst").read_text()
        marks = list(_METHOD.finditer(text))
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            end = following.start() if following else len(text)
            found[mark.group(1), mark.group(2)] = text[mark.end() : end]
    return found


def application() -> Application:
    overrides = {
        "store": "memory://",
        "admin_mode": True,
        "pooling": True,
        "auth": "keys",
        "encryption_key_file": ROOT / "tests" / "api" / "encryption.keys",
    }
    return create_app(load(environment={}, overrides=overrides))


def test_the_reference_has_every_route_with_every_status_it_can_give() -> None:
    documented = sections()
    routes = application().routes
    assert {(route.method, route.template) for route in routes} == set(documented)
    for route in routes:
        text = documented[route.method, route.template]
        statuses = {int(status) for status in _STATUS.findall(text)}
        expected = set(route.statuses) | (set() if route.public else {400})
        assert statuses == expected, (route.method, route.template)
        for parameter in route.parameters:
            assert f"   - {parameter.name}: " in text, (route.name, parameter.name)


def test_every_page_is_in_the_contents() -> None:
    contents = (SOURCE / "index.rst").read_text()
    pages = {page.stem for page in SOURCE.glob("*.rst")} - {"index"}
    assert {page for page in pages if f"\n   {page}\n" not in contents} == set()


def test_every_sample_is_json_and_is_shown() -> None:
    shown = "\n".join(page.read_text() for page in SOURCE.glob("*.rst"))
    samples = sorted((SOURCE / "samples").glob("*.json"))
    assert len(samples) > 20
    for sample in samples:
        json.loads(sample.read_text())
        assert f"samples/{sample.name}" in shown, f"no page shows {sample.name}"


def test_every_setting_is_documented_with_its_default() -> None:
    text = (SOURCE / "settings.rst").read_text()
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f" (``{field.default!r}``)"
        assert f"``{name}``{default}\n   {field.description}\n" in text, name


LIMITS = {
    "default_claim_ttl": ("parameters.yaml", "; {} when absent or null."),
    "default_claim_grace": ("parameters.yaml", "; {} when absent or null."),
    "max_claim_grace": ("parameters.yaml", "60 to {}\n    (``max_claim_grace``)"),
    "max_queues_per_page": ("parameters.yaml", "1 to {} (for messages ``max_messages_per_page``)"),
    "max_pools_per_page": ("parameters.yaml", "1 to {} (for messages ``max_messages_per_page``)"),
    "max_flavors_per_page": ("parameters.yaml", "1 to {} (for messages ``max_messages_per_page``)"),
    "max_subscriptions_per_page": ("parameters.yaml", "1 to {} (for messages"),
    "default_subscription_ttl": ("parameters.yaml", "lives, from 60; {} without it."),
    "max_message_headers": ("parameters.yaml", "at most {} of them and"),
    "max_message_headers_size": ("parameters.yaml", "of them and {} bytes."),
    "max_ranges": ("parameters.yaml", "How many ranges at most, 1 to {}."),
    "max_queues_per_project": ("queues.rst", "503 if the project has {:,} queues."),
    "max_subscriptions_per_queue": ("subscriptions.rst", "503 if the queue has {} subscriptions."),
    "max_messages_per_post": ("differences.rst", "A post may have at most {:,} messages"),
    "max_copies_per_post": ("embedded-store.rst", "more than {:,} copies is a 400"),
    "max_waiters": ("events.rst", "a process has {:,} of these"),
}
"""The page that tells each limit which is no setting."""


def test_every_limit_that_is_no_setting_is_documented() -> None:
    others = {
        one.name: one.default for one in fields(Limits) if one.name not in Settings.model_fields
    }
    shown = {"default_message_delay": 0, "signed_url_max_expires": 7 * 24 * 3600}
    assert {name: others.pop(name) for name in shown} == shown
    assert others.keys() == LIMITS.keys()
    for name, (page, words) in LIMITS.items():
        assert words.format(others[name]) in (SOURCE / page).read_text(), name


def names_of_the_package() -> set[str]:
    """Every class, function and method, alone and behind its class or its module."""
    names: set[str] = set()
    for module in PACKAGE.rglob("*.py"):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        for owner in ast.walk(tree):
            if isinstance(owner, ast.ClassDef | ast.Module):
                prefix = owner.name if isinstance(owner, ast.ClassDef) else module.stem
                for one in owner.body:
                    if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        names |= {one.name, f"{prefix}.{one.name}"}
    return names


def test_the_architecture_page_names_what_there_is() -> None:
    """Files, and names with a capital, an underscore or a dot: the walks have the real ones."""
    names = names_of_the_package()
    page = (SOURCE / "architecture.rst").read_text()
    walks = page[page.index("What happens to a post") : page.index("\nTime\n")]
    told = set(re.findall(r"``([\w./]+)``", walks))
    assert len(told) > 50
    wrong = {
        one
        for one in told
        if not any(str(path).endswith(f"/{one}") for path in PACKAGE.rglob("*.*"))
        and re.search(r"[A-Z_.]", one)
        and one not in names
    }
    assert wrong == {"options.ordered"}  # a subscription's

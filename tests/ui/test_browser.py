"""The page in a real browser: Chromium, driven by Playwright. Needs `tests/run --all`."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.client.conftest import MovableServer
from tests.server import ServerProcess
from zaqar_lite.client import Client, NewMessage, Settlement

pytestmark = pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="needs --all")
PICTURES = os.environ.get("ZAQAR_TEST_PICTURES")
"""A directory for the pictures of the guide; none are taken without."""
HOSTILE = (
    "</pre></textarea><script>document.title='taken'</script>"
    "<img src=x onerror=document.title='taken'><svg onload=document.title='taken'>"
)

LONG = "a-queue-with-the-longest-name-there-is".ljust(64, "x")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium; Playwright's own build is not needed."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found is not None, "install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MovableServer]:
    """A server whose clock moves, for each test its own."""
    offset = tmp_path / "offset"
    env = {"ZAQAR_LITE_CLOCK_OFFSET_FILE": str(offset)}
    with ServerProcess("memory://", "--admin-mode", "--pooling", env=env) as process:
        yield MovableServer(process, offset)


class Watched:
    """A page that notes each request that left for elsewhere, and each complaint."""

    def __init__(self, browser: Browser, server: MovableServer) -> None:
        self.context = browser.new_context(base_url=server.url, viewport=WINDOW)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self._note(one.url, server.url))
        self.page.on("console", lambda one: self._complain(one.type, one.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, url: str, own: str) -> None:
        if not url.startswith(own):
            self.elsewhere.append(url)

    def _complain(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.elsewhere == []


WINDOW, PHONE = ViewportSize(width=1000, height=760), ViewportSize(width=390, height=760)


def without_faults(page: Page) -> None:
    """Let axe look for what keeps somebody from using a screen: wide and light, narrow and dark."""
    for size, is_dark in ((WINDOW, False), (PHONE, True)):
        page.set_viewport_size(size)
        page.emulate_media(color_scheme="dark" if is_dark else "light")
        found = Axe().run(page)
        assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], page.url
    page.set_viewport_size(WINDOW)
    page.emulate_media(color_scheme="light")


def picture(page: Page, name: str) -> None:
    """Take a picture for the guide, if that is asked for."""
    if PICTURES is not None:
        page.screenshot(path=Path(PICTURES) / f"page-{name}.png")


def fail_all(client: Client, queue: str, reason: str, detail: str) -> None:
    """Be a worker that fails at each message of the queue, until none is ready."""
    while held := client.create_claim(queue, limit=20):
        failed = [
            Settlement.release(one, failed=True, reason=reason, detail=detail)
            for one in held.messages
        ]
        client.settle(queue, held.id, failed)


def a_shop(client: Client) -> None:
    """Queues of a shop, of which one is stuck: its worker fails."""
    for name in ("mails", "invoices"):
        client.create_queue(name)
        client.post_batch(name, [{"n": n} for n in range(3)])
    client.create_queue("orders-dead")
    client.create_queue("orders", {"_dead_letter_queue": "orders-dead", "_max_failures": 1})
    client.post_batch("orders", [{"order": n, "total": 19.9 + n} for n in range(12)])
    detail = "POST https://payments/charge: 503 Service Unavailable"
    fail_all(client, "orders", "http_503", detail)


def test_an_operator_finds_a_stuck_queue_and_mends_it(
    chromium: Browser, server: MovableServer
) -> None:
    with Client(server.url) as client, Watched(chromium, server) as watched:
        a_shop(client)
        server.advance(1_200)
        page = watched.page
        page.goto("/ui/")
        expect(page.locator("tbody tr").first).to_contain_text("orders")
        picture(page, "queues")
        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_role("link", name="orders-dead").click()

        expect(page.get_by_role("cell", name="http_503").first).to_be_visible()
        picture(page, "dead-letters")
        page.locator("a.id").first.click()
        expect(page.get_by_text("503 Service Unavailable")).to_be_visible()
        picture(page, "message")
        page.go_back()

        page.get_by_role("button", name="Put back").click()
        expect(page.get_by_text("completed")).to_be_visible()
        assert client.stats("orders-dead").total == 0

        page.goto("/ui/p/default/q/orders/")
        counts = page.locator("dl.counts")
        expect(counts).to_contain_text("Ready12")
        expect(counts).to_contain_text("Oldest20m")
        page.evaluate("window.kept = true")
        while claim := client.create_claim("orders", limit=20):
            client.delete_messages("orders", [m.id for m in claim.messages], claim_ids=[claim.id])
        expect(counts).to_contain_text("Ready0")
        expect(counts).not_to_contain_text("20m")
        assert page.evaluate("window.kept"), "the counts fell without a reload"
        assert watched.complaints == []
        expect(page.get_by_role("status")).to_have_count(0)
        server.process.terminate()
        expect(page.get_by_role("status")).to_contain_text("The server does not answer.")


def everything(client: Client, server: MovableServer) -> list[str]:
    """Fill a server, and return the address of each screen."""
    a_shop(client)
    client.create_queue("later", {"_default_message_delay": 900})
    waits = [30, 200, 220, 400, 640, 800, 810, 820]
    client.post_batch("later", [NewMessage(body={"wait": n}, delay=n) for n in waits])
    delayed = next(client.list_messages("later", include_delayed=True)).id
    hostile = client.post("mails", {"x": HOSTILE}, headers={"x": HOSTILE})
    client.create_claim("invoices", limit=2)
    client.schedules.put("nightly", queue="reports", body=HOSTILE, cron="30 2 * * *")
    client.subscribe("mails", "https://receiver.example/hook")
    client.create_pool("archive", "redis://user:secret@127.0.0.1:1/0", weight=0)
    (letter, *_) = client.list_dead_letters("orders-dead")
    job = client.start_redrive("orders-dead", filter={}, dry_run=True)
    client.create_queue(LONG, {"_dead_letter_queue": LONG[:-1], "_max_failures": 18})
    client.schedules.put(LONG, queue=LONG, body=1, every="15m")
    retried = client.post(LONG, {"x": "w" * 3_000})
    fail_all(client, LONG, "w" * 64, "w" * 400)
    home = "/ui/p/default/"
    return [
        home,
        f"{home}?q=nothing",
        f"{home}q/later/",
        f"{home}q/later/m/{delayed}",
        f"{home}q/mails/",
        f"{home}q/mails/m/{hostile}",
        f"{home}q/mails/subscriptions",
        f"{home}q/invoices/claims",
        f"{home}q/orders-dead/dead",
        f"{home}q/orders-dead/m/{letter.id}",
        f"{home}q/orders-dead/jobs",
        f"{home}q/orders-dead/jobs/{job.id}",
        f"{home}schedules",
        f"{home}server",
        f"{home}pools",
        f"{home}q/mails/m/nothing",
        f"{home}q/{LONG}/",
        f"{home}q/{LONG[:-1]}/dead",
        f"{home}q/{LONG[:-1]}/m/{retried}",
        "/ui/nothing",
    ]


def test_every_screen_is_usable_and_runs_no_hostile_script(
    chromium: Browser, server: MovableServer
) -> None:
    with Client(server.url) as client, Watched(chromium, server) as watched:
        page = watched.page
        for path in everything(client, server):
            page.goto(path)
            for name, end in (("queue", "later/"), ("server", "server")):
                if path.endswith(end):
                    picture(page, name)
            without_faults(page)
            assert page.title() != "taken"
            assert page.locator("main h1").count() == 1
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        # What the browser complains of is the page that is not there, and nothing of the policy.
        assert [one for one in watched.complaints if "404" not in one] == []

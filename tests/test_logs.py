"""Lines of the log: one line each, whatever a client or a store put into them."""

import asyncio
import json
import logging
import sys

import pytest

from zaqar_lite.server import logs
from zaqar_lite.server.logs import AccessFormatter, JsonFormatter

EVIL = "a\nb\r\x1b[31mred\x85\x7f\u2028c\u2029\u202eright"
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def record(message: str, **fields: object) -> logging.LogRecord:
    """A record of the access log."""
    made = logging.LogRecord("zaqar_lite", logging.INFO, "", 0, message, (), None)
    made.__dict__.update(fields)
    return made


@pytest.mark.parametrize("formatter", [JsonFormatter(), AccessFormatter("%(message)s")])
def test_what_is_logged_is_one_line_without_control_characters(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(record(f"says {EVIL}", project=EVIL, status=200))
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert line.count(r"\u2028") == 2


def test_json_lines_keep_what_was_logged() -> None:
    line = json.loads(JsonFormatter().format(record("says \u00e9 " + EVIL, project=EVIL)))
    assert (line["message"], line["project"]) == ("says \u00e9 " + EVIL, EVIL)


def test_a_traceback_keeps_its_lines_on_a_terminal_and_no_others() -> None:
    made = record("failed")
    try:
        raise ValueError(EVIL)
    except ValueError:
        made.exc_info = sys.exc_info()
    text = AccessFormatter("%(message)s").format(made)
    assert "Traceback" in text
    assert not set(text) & set(LINE_ENDS) - {"\n"}
    assert "\x1b" not in text
    assert len(JsonFormatter().format(made).splitlines()) == 1


@pytest.mark.anyio
async def test_what_clients_cause_is_logged_once_a_minute_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "INTERVAL", 0.2)
    logger = logging.getLogger("tests.seldom")
    logger.addFilter(logs.LogThrottle("%s is no HTTP"))

    async def until(lines: int) -> None:
        for _ in range(1_000):
            if len(caplog.records) >= lines:
                return
            await asyncio.sleep(0.01)

    for number in range(100):
        logger.warning("%s is no HTTP", number)
    logger.warning("another")
    assert caplog.messages == ["0 is no HTTP", "another"]
    await until(3)
    logger.warning("%s is no HTTP", "this")
    assert len(caplog.messages) == 3, "the minute after a count is quiet too"
    await until(4)
    await asyncio.sleep(0.5)
    logger.warning("%s is no HTTP", "last")
    assert caplog.messages[2:] == [
        "0 is no HTTP (99 more in the last minute)",
        "0 is no HTTP (1 more in the last minute)",
        "last is no HTTP",
    ]

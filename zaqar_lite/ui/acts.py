"""What the forms of the page do; each answers the address that shows the outcome."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from zaqar_lite.ui import settings
from zaqar_lite.ui.calls import Caller, refused
from zaqar_lite.ui.views import job_path

_PATCH = "application/openstack-messaging-v2.0-json-patch"
_MOST_DIGITS = 18
_PLAN = ("queue", "cron", "every", "at", "time_zone")


async def create_queue(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Make a queue, as it is by default."""
    name = fields.get("name", "").strip()
    await caller.call("PUT", f"/v2/queues/{quote(name, safe='')}", document={})
    return f"/ui/p/{_part(request, 'project')}/q/{quote(name, safe='')}/"


async def on_queue(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Post a message, change the settings, purge or delete: what the form's button says."""
    path, here = f"/v2/queues/{_part(request, 'queue')}", _queue(request)
    match fields.get("act"):
        case "post":
            message: dict[str, Any] = {"body": _body(fields.get("body", ""))}
            for name in ("ttl", "delay"):
                if fields.get(name, "").strip():
                    message[name] = _whole(name, fields[name])
            await caller.call("POST", f"{path}/messages", document={"messages": [message]})
        case "settings":
            wanted = _body(fields.get("settings", ""))
            if not isinstance(wanted, dict):
                raise refused("The settings must be a JSON object")
            now = (await caller.call("GET", path)).document
            patch = [
                {
                    "op": "replace" if key in now else "add",
                    "path": f"/metadata/{_pointer(key)}",
                    "value": value,
                }
                for key, value in wanted.items()
                if now.get(key) != value
            ]
            await _patch(caller, path, patch)
        case "set":
            now = (await caller.call("GET", path)).document
            await _patch(caller, path, settings.changes(fields, now, _whole))
        case "purge" | "delete" as act:
            if fields.get("confirm") != request.path_params["queue"]:
                raise refused("Nothing was deleted", "Type the queue's name to confirm.")
            if act == "purge":
                document = {"resource_types": ["messages"]}
                await caller.call("POST", f"{path}/purge", document=document)
            else:
                await caller.call("DELETE", path)
                return f"/ui/p/{_part(request, 'project')}/"
        case _:
            raise refused("The form has no such act")
    return here


async def _patch(caller: Caller, path: str, patch: list[dict[str, Any]]) -> None:
    """Change a queue's metadata, if there is anything to change."""
    if patch:
        await caller.call("PATCH", path, document=patch, content_type=_PATCH)


async def on_message(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Delete a message, or change one that is still delayed."""
    here = _queue(request)
    path = f"/v2/queues/{_part(request, 'queue')}/messages/{_part(request, 'message')}"
    match fields.get("act"):
        case "delete":
            await caller.call("DELETE", path)
            return here
        case "edit":
            document: dict[str, Any] = {"body": _body(fields.get("body", ""))}
            if fields.get("delay", "").strip():
                document["delay"] = _whole("delay", fields["delay"])
            await caller.call("PATCH", path, document=document)
            return f"{here}m/{_part(request, 'message')}"
    raise refused("The form has no such act")


async def redrive(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Put letters back: all, those of a reason, or one; a dry run only counts them."""
    order: dict[str, Any] = {"filter": {}}
    if fields.get("id"):
        order = {"ids": [fields["id"]]}
    elif fields.get("reason"):
        order["filter"]["reason"] = fields["reason"]
    if fields.get("dry_run"):
        order["dry_run"] = True
    if fields.get("rate", "").strip():
        order["max_per_second"] = _whole("rate", fields["rate"])
    path = f"/v2/queues/{_part(request, 'queue')}/redrives"
    answer = await caller.call("POST", path, document=order)
    if answer.status == 202:
        return f"{_queue(request)}jobs/{answer.document['id']}"
    if not answer.document["done"]:
        raise refused("It was left alone", ", ".join(answer.document["refused"]))
    return f"{_queue(request)}dead"


async def cancel_job(caller: Caller, request: Request, _: Mapping[str, str]) -> str:
    """Let a job act on nothing more."""
    await caller.call("DELETE", f"/v2/queues/{_part(request, 'queue')}/{job_path(request)}")
    return f"{_queue(request)}jobs"


async def on_delayed(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Cancel or fire all that is delayed; a dry run only counts it."""
    act, order = fields.get("act", ""), {"filter": {}, "dry_run": bool(fields.get("dry_run"))}
    if act not in ("cancel", "fire"):
        raise refused("The form has no such act")
    if not order["dry_run"] and fields.get("confirm") != request.path_params["queue"]:
        raise refused("Nothing was done", "Type the queue's name to confirm.")
    path = f"/v2/queues/{_part(request, 'queue')}/delayed/{act}"
    answer = await caller.call("POST", path, document=order)
    return f"{_queue(request)}jobs/{answer.document['id']}?act={act}"


async def release(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Give back what a claim holds."""
    claim = quote(fields.get("claim", ""), safe="")
    await caller.call("DELETE", f"/v2/queues/{_part(request, 'queue')}/claims/{claim}")
    return f"{_queue(request)}claims"


async def on_schedules(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Make a schedule; or fire, pause, resume or end one."""
    name = quote(fields.get("name", "").strip(), safe="")
    path = f"/v2/schedules/{name}"
    match fields.get("act"):
        case "make":
            plan = {key: fields.get(key, "").strip() for key in _PLAN}
            plan = {key: value for key, value in plan.items() if value}
            await caller.call("PUT", path, document={**plan, "body": _body(fields.get("body", ""))})
        case "fire":
            await caller.call("POST", f"{path}/fire")
        case "pause" | "resume" as act:
            await caller.call("PATCH", path, document={"paused": act == "pause"})
        case "end":
            await caller.call("DELETE", path)
        case _:
            raise refused("The form has no such act")
    return f"/ui/p/{_part(request, 'project')}/schedules"


async def on_pools(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Change a pool's weight, or empty it into the others."""
    path = f"/v2/pools/{quote(fields.get('name', ''), safe='')}"
    match fields.get("act"):
        case "weight":
            weight = _whole("weight", fields.get("weight", ""))
            await caller.call("PATCH", path, document={"weight": weight})
        case "drain":
            await caller.call("POST", f"{path}/drain")
        case _:
            raise refused("The form has no such act")
    return f"/ui/p/{_part(request, 'project')}/pools"


def _body(text: str) -> Any:  # noqa: ANN401 - JSON is anything
    try:
        return json.loads(text)
    except ValueError as error:
        raise refused("What was typed is not JSON", f"{error}. A text stands in quotes.") from None
    except RecursionError:
        raise refused("What was typed is nested too deeply") from None


def _whole(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise refused(f"The {name} must be a whole number")
    return int(digits)


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _part(request: Request, name: str) -> str:
    return quote(request.path_params[name], safe="")


def _queue(request: Request) -> str:
    return f"/ui/p/{_part(request, 'project')}/q/{_part(request, 'queue')}/"

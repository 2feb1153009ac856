"""What the forms of the page do; each answers the address that shows the outcome."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from zaqar_lite.ui import settings
from zaqar_lite.ui.calls import (
    Caller,
    Refused,
    job_path,
    message_path,
    project_address,
    queue_address,
    queue_path,
    quoted,
)

_MOST_DIGITS = 18
_PLAN = ("queue", "cron", "every", "at", "time_zone")


async def create_queue(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Make a queue, as it is by default."""
    name = quoted(fields.get("name", "").strip())
    await caller.call("PUT", f"/v2/queues/{name}", document={})
    return f"{project_address(request)}q/{name}/"


async def on_queue(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Post a message, change the settings, purge or delete: what the form's button says."""
    path, here = queue_path(request), queue_address(request)
    match fields.get("act"):
        case "post":
            message: dict[str, Any] = {"body": _body(fields.get("body", ""))}
            for name in ("ttl", "delay"):
                if fields.get(name, "").strip():
                    message[name] = _whole(name, fields[name])
            await caller.call("POST", f"{path}/messages", document={"messages": [message]})
        case "settings" | "set" as act:
            now = await caller.get(path)
            text = fields.get("settings", "")
            wanted = settings.changes(fields, now, _whole) if act == "set" else _body(text)
            if not isinstance(wanted, dict):
                raise Refused("The settings must be a JSON object")
            if patch := settings.patch(wanted, now):
                await caller.call("PATCH", path, document=patch)
        case "purge" | "delete" as act:
            if fields.get("confirm") != request.path_params["queue"]:
                raise Refused("Nothing was deleted", "Type the queue's name to confirm.")
            if act == "purge":
                document = {"resource_types": ["messages"]}
                await caller.call("POST", f"{path}/purge", document=document)
            else:
                await caller.call("DELETE", path)
                return project_address(request)
        case _:
            raise Refused("The form has no such action")
    return here


async def on_message(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Delete a message, or change one that is still delayed."""
    path, here = message_path(request), queue_address(request)
    match fields.get("act"):
        case "delete":
            await caller.call("DELETE", path)
            return here
        case "edit":
            document: dict[str, Any] = {"body": _body(fields.get("body", ""))}
            if fields.get("delay", "").strip():
                document["delay"] = _whole("delay", fields["delay"])
            await caller.call("PATCH", path, document=document)
            return f"{here}m/{quoted(request.path_params['message'])}"
    raise Refused("The form has no such action")


async def redrive(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Put letters back: all, those of a reason, or one; a dry run only counts them."""
    order: dict[str, Any] = {"dry_run": bool(fields.get("dry_run"))}
    if fields.get("id"):
        order["ids"] = [fields["id"]]
    else:
        order["filter"] = {"reason": fields["reason"]} if fields.get("reason") else {}
    if fields.get("rate", "").strip():
        order["max_per_second"] = _whole("rate", fields["rate"])
    answer = await caller.call("POST", f"{queue_path(request)}/redrives", document=order)
    if answer.status == 202:
        return f"{queue_address(request)}jobs/{answer.document['id']}"
    if not answer.document["done"]:
        raise Refused("It was left alone", ", ".join(answer.document["refused"]))
    return f"{queue_address(request)}dead"


async def cancel_job(caller: Caller, request: Request, _: Mapping[str, str]) -> str:
    """Stop a job; what it has done stays done."""
    await caller.call("DELETE", job_path(request))
    return f"{queue_address(request)}jobs"


async def on_delayed(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Cancel or fire all that is delayed; a dry run only counts it."""
    act, order = fields.get("act", ""), {"filter": {}, "dry_run": bool(fields.get("dry_run"))}
    if act not in ("cancel", "fire"):
        raise Refused("The form has no such action")
    if not order["dry_run"] and fields.get("confirm") != request.path_params["queue"]:
        raise Refused("Nothing was done", "Type the queue's name to confirm.")
    answer = await caller.call("POST", f"{queue_path(request)}/delayed/{act}", document=order)
    return f"{queue_address(request)}jobs/{answer.document['id']}?act={act}"


async def release(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Give back what a claim holds."""
    claim = quoted(fields.get("claim", ""))
    await caller.call("DELETE", f"{queue_path(request)}/claims/{claim}")
    return f"{queue_address(request)}claims"


async def on_schedules(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Make a schedule; or fire, pause, resume or end one."""
    path = f"/v2/schedules/{quoted(fields.get('name', '').strip())}"
    match fields.get("act"):
        case "make":
            plan = {key: value for key in _PLAN if (value := fields.get(key, "").strip())}
            await caller.call("PUT", path, document={**plan, "body": _body(fields.get("body", ""))})
        case "fire":
            await caller.call("POST", f"{path}/fire")
        case "pause" | "resume" as act:
            await caller.call("PATCH", path, document={"paused": act == "pause"})
        case "end":
            await caller.call("DELETE", path)
        case _:
            raise Refused("The form has no such action")
    return f"{project_address(request)}schedules"


async def on_pools(caller: Caller, request: Request, fields: Mapping[str, str]) -> str:
    """Change a pool's weight, or empty it into the others."""
    path = f"/v2/pools/{quoted(fields.get('name', ''))}"
    match fields.get("act"):
        case "weight":
            weight = _whole("weight", fields.get("weight", ""))
            await caller.call("PATCH", path, document={"weight": weight})
        case "drain":
            await caller.call("POST", f"{path}/drain")
        case _:
            raise Refused("The form has no such action")
    return f"{project_address(request)}pools"


def _body(text: str) -> Any:  # noqa: ANN401 - JSON is anything
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused("What was typed is not JSON", f"{error}. A text stands in quotes.") from None
    except RecursionError:
        raise Refused("What was typed is nested too deeply") from None


def _whole(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise Refused(f"The {name} must be a whole number")
    return int(digits)

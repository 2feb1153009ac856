"""The documents of jobs and schedules as JSON schemas."""

from zaqar_lite.api.schema import COUNT, LINKS, TEXT, Schema, list_of, object_of


def job_schemas() -> dict[str, Schema]:
    """The schemas of jobs and schedules."""
    count: Schema = {"type": "integer", "minimum": 1}
    shown = object_of(
        ("id", "act", "state", "selected", "done", "refused"),
        id=TEXT,
        act=TEXT,
        order={"type": "object"},
        state={"enum": ["running", "completed", "cancelled", "failed"]},
        created=TEXT,
        ended={"type": ["string", "null"]},
        total=COUNT,
        examined=COUNT,
        selected=COUNT,
        done=COUNT,
        refused={"type": "object", "additionalProperties": COUNT},
        targets={"type": "object", "additionalProperties": COUNT},
        rate={"type": "number"},
        remaining={"type": ["integer", "null"]},
        sample=list_of({"type": "object"}),
        error=TEXT,
    )
    body: Schema = {}
    schedule = object_of(
        name=TEXT,
        queue=TEXT,
        body=body,
        ttl=count,
        delay=COUNT,
        headers={"type": "object", "additionalProperties": TEXT},
        group=TEXT,
        cron=TEXT,
        every={"type": ["integer", "string"]},
        at=TEXT,
        time_zone=TEXT,
        start=TEXT,
        end=TEXT,
        jitter={"type": ["integer", "string"]},
        missed={"enum": ["skip", "one", "all"]},
        catch_up={"type": ["integer", "string"]},
        overlap={"enum": ["allow", "skip"]},
        paused={"type": "boolean"},
    )
    return {
        "Schedule": schedule,
        "Schedules": object_of(("schedules", "links"), schedules=list_of(schedule), links=LINKS),
        "Fired": object_of(("message_id",), message_id=TEXT),
        "Job": object_of(
            ids=list_of(TEXT),
            filter={"type": "object"},
            dry_run={"type": "boolean"},
            max_per_second=count,
            limit=count,
            to=TEXT,
            by={"type": "integer"},
            reset={"enum": ["counts", "none"]},
            delay=COUNT,
            ttl=COUNT,
            force={"type": "boolean"},
        ),
        "JobShown": shown,
        "Jobs": object_of(("jobs",), jobs=list_of(shown)),
    }

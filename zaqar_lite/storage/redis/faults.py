"""What Redis answers when it cannot serve, in the terms of the domain."""

from zaqar_lite.domain.errors import ConfigurationError, Unavailable


class Fault(Exception):
    """An error reply. Its first word is the code."""

    @property
    def code(self) -> str:
        """The first word of the reply, such as `LOADING`."""
        return str(self).split(" ", 1)[0]

    @property
    def is_unknown_function(self) -> bool:
        """Whether Redis has not been given the library that a call needs."""
        return str(self) == "ERR Function not found"


class ConnectionLost(Exception):
    """The connection was lost; `sent` says whether the call may have been carried out."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class InDoubt(Unavailable):
    """The connection was lost, and the call may or may not have been carried out."""


_PASSING = {
    "LOADING": "Redis is loading its data after a start",
    "READONLY": "this Redis is a replica now; the next call looks for the master",
    "MASTERDOWN": "this Redis is a replica without its master",
    "OOM": "Redis has used up its maxmemory: claim and delete messages, or raise it",
    "BUSY": "Redis is busy with a script",
    "MISCONF": "Redis cannot save its data, and refuses writes until it can (see its log)",
    "NOREPLICAS": "Redis has too few replicas to accept writes (min-replicas-to-write)",
    "CLUSTERDOWN": "the Redis cluster has slots that nobody serves",
    "TRYAGAIN": "the Redis cluster is moving the queue to another node",
    "MOVED": "this Redis is one node of a cluster (its URI begins with redis+cluster://)",
    "NOAUTH": "Redis wants a password that the store's URI does not have",
    "NOPERM": "Redis does not permit this user what the store needs (see its ACL)",
    "UNBLOCKED": "Redis became a replica meanwhile",
}
_REFUSED = {"NOAUTH", "WRONGPASS", "NOPERM"}
SWITCHES_NODE = {"READONLY", "MASTERDOWN", "UNBLOCKED"}
"""Replies after which the router must look up the node again."""


def explain(fault: Fault) -> Exception:
    """The domain's error for an error reply; the fault itself when it can only be a bug."""
    reason = _PASSING.get(fault.code)
    if str(fault).endswith(" already exists"):  # it was there, and has gone before the call came
        reason = "somebody deletes the library of functions"
    elif " killed by user " in str(fault):  # Redis lets nobody do so once a script has written
        reason = "somebody ended the function (FUNCTION KILL), and nothing was done"
    return fault if reason is None else Unavailable(f"The store cannot serve now: {reason}.")


def explain_at_start(fault: Fault) -> Exception:
    """The domain's error for an error reply while connecting."""
    if fault.code in _REFUSED or (fault.code == "ERR" and "AUTH" in str(fault)):
        return ConfigurationError(
            f"Redis refuses the login ({fault}): check user and password in the store's URI."
        )
    if fault.code == "ERR" and "DB index" in str(fault):
        return ConfigurationError(f"Redis has no such database ({fault}): check the URI's path.")
    reason = explain(fault)
    if reason is fault:  # it has too many clients, or is in protected mode
        reason = Unavailable("The store cannot serve now: Redis refuses", detail=str(fault))
    return reason


def refused(error: ConfigurationError) -> Unavailable:
    """The error where Redis lets this server in no longer: a password was changed, for one."""
    return Unavailable("The store cannot serve now: Redis refuses this server.", detail=str(error))


def unavailable(lost: ConnectionLost, *, was_sent: bool) -> Unavailable:
    """The domain's error for a lost connection; `was_sent`: any attempt at the call was sent."""
    kind, outcome = Unavailable, "was not sent"
    if was_sent:
        kind, outcome = InDoubt, "may or may not have been carried out"
    return kind(f"No connection to Redis; the call {outcome}.", detail=str(lost))

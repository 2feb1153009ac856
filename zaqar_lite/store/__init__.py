"""The command `zaqar-lite store`: what looks after an embedded store while no server uses it."""

from zaqar_lite.store.commands import add_commands

__all__ = ["add_commands"]

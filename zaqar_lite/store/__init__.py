"""The command `zaqar-lite store`: check, back up, export, import, compact and salvage a store."""

from zaqar_lite.store.commands import add_commands

__all__ = ["add_commands"]

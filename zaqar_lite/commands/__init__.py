"""The command line over the SDK, one module per noun; `add_commands` of each declares its commands.

A leaf sets `run`, which answers its exit code. Nothing here imports the SDK, an HTTP library or
rich before a command runs, and only the module of the noun that is asked for is imported, so that
`zaqar-lite --help` is quick.
"""

from typing import TYPE_CHECKING

__all__ = ["sdk"]

if TYPE_CHECKING:
    from zaqar_lite import client as sdk
else:

    class _Sdk:
        """`zaqar_lite.client`, which is imported when a command first needs something of it."""

        def __getattr__(self, name: str) -> object:
            from zaqar_lite import client  # noqa: PLC0415

            return getattr(client, name)

    sdk = _Sdk()

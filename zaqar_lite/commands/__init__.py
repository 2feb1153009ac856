"""The command line over the SDK, one module per noun; `add_commands` of each declares its commands.

A leaf sets `run`, which answers its exit code. Nothing here imports the SDK, an HTTP library or
rich before a command runs, and only the module of the noun that is asked for is imported, so that
`zaqar-lite --help` and the names that a shell completes are quick.
"""

"""The engine on SlateDB: a local directory or an object store's bucket (extra `slatedb`)."""

FOLDER = "slatedb"
"""The folder of a store in its directory; known where the extra is not installed, too."""

"""The engine on SlateDB: a local directory or an object store's bucket (extra `slatedb`)."""

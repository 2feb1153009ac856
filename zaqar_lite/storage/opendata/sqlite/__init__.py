"""The engine on SQLite: one file, written by a process of its own, rebuilt where it is damaged."""

"""The page at /ui/."""

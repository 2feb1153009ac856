"""What the server counts of itself: plain integers, kept where they happen and rendered by hand."""

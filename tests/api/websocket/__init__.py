"""WebSockets, spoken to a real server over real connections."""

"""The WebSocket transport: frames that name an action, over the same table of routes as HTTP."""

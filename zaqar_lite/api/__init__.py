"""HTTP: parse a request, call one service method, render its answer."""

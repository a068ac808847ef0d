"""The broker: settings, the socket server, the router, and a handler for each API."""

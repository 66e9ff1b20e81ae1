"""The requests and messages of each kind of client: of other services, and our own WebSocket's."""

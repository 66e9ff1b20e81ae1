"""The door for people and programs: HTTP and WebSocket in front of one engine. Knows no AWS."""

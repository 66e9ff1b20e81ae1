"""HTTP and WebSocket in front of one engine. Calls no AWS.

`limits` lists the path prefixes of the SageMaker container, too: one table decides which paths need a key.
"""

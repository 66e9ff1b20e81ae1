"""HTTP and WebSocket in front of one engine. Calls no AWS.

`limits` also lists the paths of the SageMaker container, so that one table decides which paths need a key.
"""

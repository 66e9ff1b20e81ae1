"""The AWS edge: the container contract of SageMaker hosting, the handler of its toolkits, and a local endpoint.

Knows the server and the engine; nothing below knows of this room, and it never calls AWS by itself.
"""

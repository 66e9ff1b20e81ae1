"""SageMaker hosting: its container contract, a handler for its inference toolkits, and a local endpoint for boto3.

The package builds on the server and the engine, which do not import it. It calls AWS only if a setting or command names
S3.
"""

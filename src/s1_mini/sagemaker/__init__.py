"""The container contract of SageMaker hosting, the handler of its toolkits, and a local endpoint for boto3.

Builds on the server and the engine, which do not import it. It calls AWS only if a setting or command names S3.
"""

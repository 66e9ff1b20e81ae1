"""AWS: the description of a deployment, its CloudFormation stack, calls to endpoints, clients, S3 and error messages.

boto3 is imported when a client is created; torch is never imported.
"""

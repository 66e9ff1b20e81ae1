"""Clients of AWS, places on S3 and error messages. Knows no endpoint.

boto3 is loaded when a client is made.
"""

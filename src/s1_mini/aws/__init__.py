"""What everything that asks AWS shares: clients, places on S3, and failures as sentences. Knows no endpoint.

boto3 is loaded when a client is made.
"""

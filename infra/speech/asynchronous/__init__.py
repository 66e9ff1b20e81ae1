"""The endpoint that takes requests from S3 and leaves the sound there; no instance while nothing waits."""

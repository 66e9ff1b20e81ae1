"""From a container image and an artifact in S3 to an endpoint that scales: what is wanted, the calls, their making.

`spec` says what is wanted, `calls` and `scaling` turn it into AWS calls, `check` holds each against AWS's own
description of its services, `run` makes them and takes back what it made if one fails, `watch` waits. Only `run`,
`find`, `preflight`, `watch` and `ask` talk to AWS, through the clients of `clients`.
"""

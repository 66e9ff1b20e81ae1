"""Package a checkpoint for an endpoint, and verify an artifact before anything of it is used.

What goes into an artifact (`layout`), the two forms it has (`write`), what it says of itself (`manifest`), and the
proof that it is what it says (`verify`). Knows no AWS: what is sent there stands in `s1_mini.sagemaker`.
"""

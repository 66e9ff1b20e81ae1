"""The HTTP and WebSocket server of one engine. Makes no calls to AWS.

The tables of paths in `limits` include those of `s1_mini.sagemaker`, so that one module decides which paths need a key.
"""

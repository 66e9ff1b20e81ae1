"""The semantic and the coarse model on vLLM, each in a worker process with its own environment (docs/vllm.md).

`stage` runs in this process, `worker` and `model` in the worker, `packing` in both.
"""

"""The semantic and the coarse model on vLLM, each in a worker process with an environment of its own (docs/vllm.md).

`stage` is for this process, `worker` and `model` for the worker's, `packing` for both.
"""

"""The semantic and the coarse model on vLLM, each in a worker process in vLLM's own environment (docs/vllm.md).

The module `stage` runs in the engine's process, `worker` and `model` in the worker process, `packing` in both.
"""

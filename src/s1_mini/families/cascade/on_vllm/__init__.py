"""The semantic and the coarse model on vLLM, each in a worker process with an environment of its own (docs/vllm.md).

`stage`, `launch` and `packing` are for this process; `worker`, `plugin`, `model` and `packing` for the worker's.
"""

"""Measurements of the project, such as `python -m benchmark.gpu_suite`; not part of the package."""

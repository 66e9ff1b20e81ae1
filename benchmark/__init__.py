"""What the project measures itself by: `python -m benchmark.gpu_suite` and its parts. Not in the package."""

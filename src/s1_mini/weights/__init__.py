"""Read tensor files safely, write them, and load tensors into modules strictly, for all model families."""

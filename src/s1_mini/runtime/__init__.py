"""Load a checkpoint, run its stages in threads, and serve requests with it."""

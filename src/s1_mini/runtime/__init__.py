"""Load a checkpoint, run its stages in threads, and pass requests to them."""

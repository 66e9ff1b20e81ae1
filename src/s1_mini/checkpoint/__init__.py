"""Work on a checkpoint directory without an engine: check requests, list voices, verify it, find its alignment head."""

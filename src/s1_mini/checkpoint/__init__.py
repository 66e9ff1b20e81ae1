"""Work on a checkpoint directory without an engine: check requests, list voices, verify against an oracle."""

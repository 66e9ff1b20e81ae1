"""What this machine gives: load on an engine, and where the time of an utterance goes."""

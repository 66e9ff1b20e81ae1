"""Numbers: what is asked of the engine, how it does, and how that is told."""

"""Policy: which request does what next, in integers and seconds. Imports no torch, and opens no array."""

"""Scheduling policy: which request does what next, in integers and seconds. Without torch; arrays are never read."""

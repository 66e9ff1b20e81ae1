"""Execution: stages on their devices, their graphs and threads. Torch, slots and arrays, and no request."""

"""Benchmarks of this machine: a load test of an engine, and a profile of one utterance."""

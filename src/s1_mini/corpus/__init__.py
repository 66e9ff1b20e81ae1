"""Speaks a corpus of texts with one engine or several; a killed job can be resumed.

`source.py` divides the input into numbered shards, the same ones in every run. A worker (`workers.py`) speaks a shard,
writes the shard, and then writes the shard's entry in the manifest. Workers run in this process or in Ray actors.
"""

"""A corpus of texts, spoken by one engine or several, that continues after a kill.

`source.py` cuts the input into shards by number, the same at every run. A worker (`workers.py`) speaks a shard, and
writes first the shard and then its entry of the manifest. It runs in this process, or in each of several Ray actors.
"""

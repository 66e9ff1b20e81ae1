"""A corpus of texts, spoken by one engine or by many: what it reads, how it goes on after a kill, what it leaves.

`source.py` cuts the input into shards by number, the same at every run. A `worker.py` speaks a shard, and writes first
the shard and then its entry of the manifest. `here.py` has one worker, `on_ray.py` one in each Ray actor.
"""

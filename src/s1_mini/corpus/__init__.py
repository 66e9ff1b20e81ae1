"""A corpus of texts, spoken by one engine or several, that continues after a kill.

`source.py` reads the input and cuts it into shards by number, the same at every run. `worker.py` speaks a shard;
`manifest.py` writes it and then its entry, to an `output.py`. `here.py` has one worker, `on_ray.py` one per Ray actor.
"""

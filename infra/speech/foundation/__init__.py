"""What stands before anything speaks: network, key, buckets, image repository, roles."""

"""Network, key, buckets, image repository and roles of a stage."""

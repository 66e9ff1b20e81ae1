"""Audio input and output: decodes references, applies effects, and encodes waves as files and streams."""

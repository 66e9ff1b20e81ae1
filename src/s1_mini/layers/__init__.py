"""Building blocks of the models: tensors in, tensors out. Independent of families, requests and files."""

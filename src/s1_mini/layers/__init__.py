"""Bricks of the models: tensors in, tensors out. They know no family, no request and no file."""

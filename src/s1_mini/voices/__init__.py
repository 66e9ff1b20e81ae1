"""Named voices, voice files and reference recordings. Each family defines the tensors of its voices."""

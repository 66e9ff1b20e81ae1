"""Operations that a GPU does in one kernel: each a function that takes Triton's where it can and torch's elsewhere."""

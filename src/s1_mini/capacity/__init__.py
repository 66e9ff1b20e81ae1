"""Memory and work of a checkpoint, the slots that fit a device, and the real-time streams of a GPU.

All figures are computed from sizes and measured shares; nothing here runs a model. `s1-mini plan` and the engine choose
the number of slots with the same functions.
"""

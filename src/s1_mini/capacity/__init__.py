"""Memory and work of a checkpoint, the slots that fit a device, and the real-time streams of a GPU.

Computed from sizes alone; nothing here runs a model. The engine chooses its slots by the same arithmetic as `plan`.
"""

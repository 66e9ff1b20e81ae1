"""How much: what a checkpoint reads, computes and holds, how many slots a memory has, what a card can do at the best.

Numbers from sizes alone; nothing here runs a model. The engine chooses its slots by the same arithmetic as `plan`.
"""

"""Work on checkpoint directories as such: convert one, verify one against an oracle, make a random one."""

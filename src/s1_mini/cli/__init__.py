"""The command line: one module per verb. Parses, calls the rooms below, prints; decides nothing."""

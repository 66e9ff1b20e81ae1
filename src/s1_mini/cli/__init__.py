"""The command line, one module per command. It parses options, calls other packages and prints."""

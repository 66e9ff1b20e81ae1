"""The command line. Each module parses the options of its commands, calls other packages and prints the results."""

"""The engine room: what is loaded, where it runs, and the loop that makes frames into sound."""

"""Engines and stages in other processes.

- `process`: supervises child processes: start, readiness, health, restart with back-off, kill.
- `supervisor`, `replica`, `proxy`, `devices`: several engines behind one port, with HAProxy in front.
- `engine_process`, `engine_worker`, `channel`: an engine in its own process, the program of that process, and the
  messages between them.
- `tokens`, `token_server`: a process that generates the tokens of one stage, and the two ends of its pipes.
- `work`, `stage_worker`, `relay`, `ray_settings`: stages in separate processes, which `s1_mini.cluster` runs on Ray
  Serve.
"""

"""Engines and stages in other processes.

- `child`, `channel`: child processes, and messages between two processes.
- `supervisor`, `replica`, `proxy`, `devices`: several engines behind one port, with HAProxy in front.
- `engine_process`, `engine_worker`: an engine in its own process, and the program of that process.
- `tokens`, `token_server`: a process that generates the tokens of one stage, and its program.
- `work`, `stage_worker`, `remote_stage`, `ray_settings`: stages in separate processes, which `s1_mini.cluster` runs on
  Ray Serve.
"""

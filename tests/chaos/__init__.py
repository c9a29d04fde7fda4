"""Chaos with real processes: workers are killed, paused and told to stop, and so is their server.

`python -m chaos` (with tests/ on the path; `make chaos`) plays it on a SeaweedFS and prints what
came of it. What the handlers did is counted outside of the queue, in a file.
"""

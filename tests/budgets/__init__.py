"""What a queue may cost in requests: measured on real and on simulated workers, and held by tests.

`python -m budgets` (with tests/ on the path) prints them: figure and budget.
At the socket they are counted by a proxy in front of a SeaweedFS, so that nothing which any thread of
any process sends is missed; in virtual time by a store that counts.
"""

"""The queue's protocol as pure functions: no I/O, no clock, no chance. See docs/protocol.md."""

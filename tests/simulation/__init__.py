"""The deterministic simulation: real workers, monitors and submitters on a bucket in memory.

One seed gives one run. `python -m simulation --seeds 1-300` (with `tests` on the path) runs
many; `make sim SEEDS=1-300` is the same. A run that breaks the protocol ends with a `Breach`.

What is modelled
----------------
Each process has an event loop of its own, and one agenda of virtual time steps them all. So a
*paused* process is one whose loop gets no turn: its coroutines and its timers stand still,
replies wait for it, and when it goes on everything that is overdue happens at once, as after
SIGSTOP and SIGCONT. A *crashed* process never gets a turn again: no `finally` of its
coroutines has any effect, while the requests that it had sent still arrive. A new process
takes its place after a while, with the same name and a seed of its own.

Between a process and the bucket is the `wire`: every request is one atomic step at the time
it arrives, 1 to 50 ms after it was sent, and its reply takes as long again. There the faults
of `faults` happen: a request or a reply is lost; a write is applied late, up to 900 s after it
was signed (the fence is checked when it is signed); 409; 503 and 429; a LIST shows what the
same LIST showed before; and before a request is sent, or after, its process is paused or
crashes. During an outage no request is served. Every process has its own error of the store's
time, up to 2 s, and of the wall clock.

After every applied write the `oracle` checks the strict invariant of docs/protocol.md, and
that the change was one that the protocol allows. After a while all faults stop, and the run
goes on until it is quiet: every acknowledged task terminal, no marker, no dead session.

Not modelled: threads (the heartbeat shares its process's loop, so a handler that blocks the
loop cannot be shown), and the bytes on the wire.
"""

"""The shortest trace: which of a failing run's faults it needs.

Example::

    result = shrunk(run(7))
    print(report(result))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from simulation.oracle import NOT_QUIET
from simulation.scenario import OUTAGE, Result, Sabotage, run

T = TypeVar("T")

MOST_RUNS = 200
LONGER_S = 120.0
"""How much longer than the best run so far another one may take to fail."""

LAST_LINES = 40


def shrunk(result: Result) -> Result:
    """Leave out faults as long as the same invariant breaks; return the run with the fewest found.

    A run that does not come to rest is shrunk too, but takes its time.
    """
    assert result.breach is not None
    script, rule = result.script, result.breach.rule
    best, runs = result, 0

    def fails(kept: Sequence[object]) -> bool:
        nonlocal best, runs
        runs += 1
        if runs > MOST_RUNS:
            return False
        stop_at_s = float("inf") if rule == NOT_QUIET else best.ended_s + LONGER_S
        again = run(script.seed, _sabotage(kept, stop_at_s))
        if again.breach is None or again.breach.rule != rule:
            return False
        best = again
        return True

    # An event has a number, a fault is at a request: together they are what may be left out.
    kept: Sequence[object] = [
        *(fault.at for fault in script.plan.happened),
        *(event.number for event in script.events),
        OUTAGE,
    ]
    for group in _groups(result):
        rest = [thing for thing in kept if thing not in group]
        if len(rest) < len(kept) and fails(rest):
            kept = rest
    minimal(kept, fails)
    return best


def _groups(result: Result) -> Iterator[set[tuple[str, int]]]:
    """What is worth leaving out at one go: all faults of a kind, all of a process."""
    happened = result.script.plan.happened
    for what in dict.fromkeys(fault.what for fault in happened):
        yield {fault.at for fault in happened if fault.what == what}
    for name in dict.fromkeys(fault.at[0] for fault in happened):
        yield {fault.at for fault in happened if fault.at[0] == name}


def minimal(things: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Find a part of `things` that still fails, and of which no element can be left out.

    Zeller's ddmin: halves first, then what remains without them, then smaller parts.
    https://www.st.cs.uni-saarland.de/papers/tse2002/
    """
    if things and fails([]):
        return []
    parts = 2
    while len(things) > 1:
        size = -(-len(things) // parts)
        chunks = [things[start : start + size] for start in range(0, len(things), size)]
        rests = [[thing for other in chunks if other is not chunk for thing in other] for chunk in chunks]
        smaller = next((kept for kept in (*chunks, *rests) if fails(kept)), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(2, parts - 1)
            things = smaller
        elif size == 1:
            break
        else:
            parts = min(len(things), 2 * parts)
    return things


def _sabotage(kept: Sequence[object], stop_at_s: float) -> Sabotage:
    faults = frozenset(thing for thing in kept if isinstance(thing, tuple))
    events = frozenset(thing for thing in kept if isinstance(thing, int))
    return Sabotage(faults, events, stop_at_s)


def report(result: Result) -> str:
    """Tell of a failing run: the seed, the breach, its faults, and what concerns it in the trace."""
    script = result.script
    assert result.breach is not None
    lines = [f"seed {result.seed} ({', '.join(script.themes)}): {result.breach}", "what befell it:"]
    lines += [f"  {thing}" for thing in (*script.outages, *script.events, *script.plan.happened)]
    about = result.breach.about.removesuffix(".json").rpartition("/")[2]
    lines.append(f"the trace, as far as it is about {about}, and its last {LAST_LINES} lines:")
    first_last = len(result.trace) - LAST_LINES
    lines += [
        f"  {at:12.3f} {line}"
        for number, (at, line) in enumerate(result.trace)
        if number >= first_last or about in line
    ]
    return "\n".join(lines)

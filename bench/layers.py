"""Where the CPU time of a task goes, by layer; `make profile` runs this.

Example::

    python bench/layers.py                      # on a SeaweedFS of its own
    python bench/layers.py --store memory       # without any HTTP
    python bench/layers.py --functions 20       # and which functions, by their own time

A worker submits nothing and a submitter runs nothing here: each has its column. The kernel
interrupts this process every few milliseconds of its CPU time (`ITIMER_PROF`), and what runs at
that moment is charged to the layer of the innermost frame that belongs to one. Unlike a tracing
profiler this costs next to nothing, so it does not make small functions look large. It shows
shares: ten thousand tasks tell them to about a percent.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any

COMPILED = ("ident", "record", "rfc3339", "shard", "sign", "value")


def give_frames(module: ModuleType) -> None:
    """Call a compiled module's functions through frames that a sample can see.

    It must be done before anything imports them.
    """
    for name, member in list(vars(module).items()):
        if type(member).__name__ == "cython_function_or_method":
            setattr(module, name, framed(member, module))
    if hasattr(module, "Signer"):
        module.Signer = _signer_with_frames(module)  # type: ignore[attr-defined]


def framed(call: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Return a function that calls another and looks like one of `module`'s."""

    def frame(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    code = frame.__code__.replace(co_qualname=call.__qualname__)
    return FunctionType(code, {"__name__": module.__name__}, closure=frame.__closure__)


def _signer_with_frames(module: ModuleType) -> type:
    compiled = module.Signer

    class Signer:
        def __init__(self, *arguments: Any) -> None:
            self.sign = framed(compiled(*arguments).sign, module)

    return Signer


for core in COMPILED:
    give_frames(importlib.import_module(f"buquet._core.{core}"))

# After the frames:
import pipeline  # noqa: E402

from buquet.clock import SystemClock  # noqa: E402
from buquet.protocol.keys import Keys  # noqa: E402
from buquet.queue import Queue  # noqa: E402
from buquet.store.memory import MemoryStore  # noqa: E402
from buquet.store.retry import Retrying  # noqa: E402

LAYERS = {
    "signature": ("buquet._core.sign",),
    "records, ids, times": ("buquet._core", "buquet.protocol"),
    "HTTP": ("buquet.s3", "aiohttp", "yarl"),
    "sockets": ("asyncio.selector_events", "asyncio.sslproto"),
    "asyncio": ("asyncio", "selectors"),
    "S3 store and driver": ("buquet.store.s3", "buquet.store.answer", "buquet.drivers"),
    "memory store": ("buquet.store.memory",),
    "retry": ("buquet.store.retry",),
    "clock": ("buquet.clock",),
    "claim, run, settle": ("buquet.worker",),
    "heartbeat, monitor": ("buquet.heartbeat", "buquet.watch", "buquet.incarnation"),
    "ledger and queue": ("buquet.ledger", "buquet.queue", "buquet.deletions"),
    "the benchmark": ("pipeline", "__main__"),
}
"""The layers, and the modules of each; the first that fits counts. Others are charged to their caller."""

OTHER = "other"
EVERY_S = 0.001
"""How often to interrupt; kernels may do it less often, every 4 ms for instance."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of work: CPU time a task in microseconds, by layer and by function."""

    tasks: int
    samples: int
    us_a_task: float
    by_layer: dict[str, float]
    by_function: dict[str, float]


class Sampler:
    """Counts what the main thread runs, by the process's CPU time."""

    def __init__(self) -> None:
        self.by_layer: Counter[str] = Counter()
        self.by_function: Counter[str] = Counter()
        self._layers: dict[str, str | None] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        before = signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _note(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None:
            self.by_function[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"] += 1
        layer = None
        while frame is not None and (layer := self._layer(frame.f_globals.get("__name__", ""))) is None:
            frame = frame.f_back
        self.by_layer[layer or OTHER] += 1

    def _layer(self, module: str) -> str | None:
        if module not in self._layers:
            parts = module.split(".")
            above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
            self._layers[module] = next((name for name, its in LAYERS.items() if above & set(its)), None)
        return self._layers[module]


async def profile(work: Callable[[], Awaitable[pipeline.Turn]], tasks: int) -> Profile:
    """Sample some work on that many tasks."""
    sampler = Sampler()
    with sampler.running():
        turn = await work()
    samples = sampler.by_layer.total()
    us_a_task = turn.cpu_s / tasks * 1e6

    def us(counts: Counter[str]) -> dict[str, float]:
        return {name: count / samples * us_a_task for name, count in counts.most_common()}

    return Profile(tasks, samples, us_a_task, us(sampler.by_layer), us(sampler.by_function))


async def measure(queue: Queue, tasks: int) -> dict[str, Profile]:
    """Profile the submission of tasks, and then a worker that runs them."""
    try:
        return {
            "submit": await profile(lambda: pipeline.submit(queue, tasks), tasks),
            "worker": await profile(lambda: pipeline.drain(queue, tasks), tasks),
        }
    finally:
        await queue.close()


def print_layers(found: dict[str, Profile]) -> None:
    """Print a row for each layer."""
    print(f"{'':<22}" + "".join(f"{name:>10} {'share':>6}" for name in found))
    rows = sorted(
        (*LAYERS, OTHER), key=lambda layer: -sum(one.by_layer.get(layer, 0.0) for one in found.values())
    )
    for layer in rows:
        figures = [(one.by_layer.get(layer, 0.0), one.us_a_task) for one in found.values()]
        if any(us for us, _ in figures):
            print(f"{layer:<22}" + "".join(f"{us:>7.1f} us {us / total:>6.1%}" for us, total in figures))
    print(f"{'CPU time a task':<22}" + "".join(f"{one.us_a_task:>7.1f} us {'':>6}" for one in found.values()))


def print_functions(name: str, found: Profile, count: int) -> None:
    """Print the functions with the most time of their own."""
    print(f"\n{name}: functions by their own time")
    for function, us in list(found.by_function.items())[:count]:
        print(f"{us:>7.1f} us {us / found.us_a_task:>6.1%}  {function}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--store", choices=("seaweedfs", "memory"), default="seaweedfs")
    parser.add_argument("--functions", type=int, default=0, help="so many functions as well")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print(f"profiling {arguments.tasks:,} tasks, a minute or two ...", file=sys.stderr)
    if arguments.store == "memory":
        clock = SystemClock()
        found = asyncio.run(measure(Queue(Retrying(MemoryStore(clock), clock), Keys()), arguments.tasks))
    else:
        with pipeline.seaweedfs() as settings:
            found = asyncio.run(measure(pipeline.queue_on(settings, "profile/"), arguments.tasks))
    if arguments.json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2))
        return 0
    print_layers(found)
    for name, one in found.items():
        if arguments.functions:
            print_functions(name, one, arguments.functions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make chaos`: play the storm and print its table."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from rich.console import Console

from chaos.storm import Plan, Storm, told_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--tasks", type=int, default=Plan.tasks)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    arguments = parser.parse_args()
    plan = Plan(arguments.tasks, arguments.seed)
    console = Console()
    console.print(f"{plan.tasks:,} tasks, seed {plan.seed}")
    with tempfile.TemporaryDirectory(prefix="buquet-chaos-") as directory:
        storm = Storm(plan, Path(directory))
        with told_of(storm.log):
            evidence = asyncio.run(storm.play())
    console.print(evidence.table())
    evidence.check()


if __name__ == "__main__":
    main()

"""What came of a storm: how often each task ran, and why more than once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.table import Table

from buquet import Task
from buquet.audit import Report
from chaos.processes import One

ASKED = "the handler failed or hung, as it was asked to"
RELEASED = "handed back by a worker that was told to stop"
KILLED = "its worker was killed"
PAUSED = "its worker was paused"
AWAY = "the store was away"
ENDED = "its lease ended"
TWICE = "the same claim ran twice"


@dataclass
class Evidence:
    """What was seen.

    Parameters
    ----------
    processes:
        The workers by name.
    outages:
        When the server was down, Unix seconds.
    histories:
        Each task's snapshots.
    runs:
        The lines of the effects: task, attempt, worker.
    report:
        The audit's, made in the end.
    took_s:
        How long it all took, in seconds.
    """

    processes: dict[str, One]
    outages: list[tuple[float, float]]
    histories: dict[str, list[Task]]
    runs: list[list[str]]
    report: Report
    took_s: float = 0.0

    @property
    def never_run(self) -> list[str]:
        """The tasks that no handler was ever called for."""
        return sorted(set(self.histories) - {task_id for task_id, _, _ in self.runs})

    @property
    def unended(self) -> list[str]:
        """The tasks that are not terminal."""
        return [task_id for task_id, history in self.histories.items() if not history[-1].status.is_terminal]

    def statuses(self) -> Counter[str]:
        """How the tasks ended."""
        return Counter(history[-1].status.value for history in self.histories.values())

    def further_runs(self) -> Counter[str]:
        """Runs beyond the first of a task, by their causes."""
        causes: Counter[str] = Counter()
        seen: dict[str, set[int]] = {}
        for task_id, attempt, _ in self.runs:
            attempts = seen.setdefault(task_id, set())
            if int(attempt) in attempts:
                causes[TWICE] += 1
            elif attempts:
                causes[self._why(task_id, before=int(attempt))] += 1
            attempts.add(int(attempt))
        return causes

    def _why(self, task_id: str, *, before: int) -> str:
        """Why the attempt before this one did not end the task."""
        history = self.histories[task_id]
        claimed = next(i for i, task in enumerate(history) if task.attempt == before - 1 and task.worker_id)
        run, after = history[claimed], history[claimed + 1]
        if after.retry_count == run.retry_count:
            return RELEASED
        if not (after.last_error or "").startswith("WorkerLost"):
            return ASKED
        began, ended = run.updated_at.timestamp(), after.updated_at.timestamp()
        worker = self.processes[run.worker_id or ""]
        if worker.killed_at is not None and worker.killed_at < ended:
            return KILLED
        if worker.was_paused(began, ended):
            return PAUSED
        if any(down < ended and up > began for down, up in self.outages):
            return AWAY
        return ENDED

    def check(self) -> None:
        """Raise where a promise was not kept."""
        assert self.never_run == []
        assert self.unended == []
        assert self.further_runs()[TWICE] == 0
        assert self.report.is_sound
        assert self.report.findings == []

    def table(self) -> Table:
        """Return it as a table for people."""
        workers = self.processes.values()
        further = self.further_runs()
        more_than_once = sum(count > 1 for count in Counter(run[0] for run in self.runs).values())
        rows = {
            "workers": len(workers),
            "  killed (SIGKILL)": sum(one.killed_at is not None for one in workers),
            "  paused (SIGSTOP), times": sum(len(one.pauses) for one in workers),
            "server killed": len(self.outages),
            "  longest away, s": round(max((up - down for down, up in self.outages), default=0)),
            "tasks": len(self.histories),
            **{f"  {status}": count for status, count in sorted(self.statuses().items())},
            "  lost": len(self.unended) + len(self.never_run),
            "runs": len(self.runs),
            "tasks that ran more than once": more_than_once,
            **{f"  runs because {cause}": count for cause, count in further.most_common()},
            "findings of the audit": len(self.report.findings),
            "time, s": round(self.took_s),
        }
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, count in rows.items():
            table.add_row(name, f"{count:,}")
        return table

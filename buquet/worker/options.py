"""How a worker runs: `WorkerRunOptions`."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRunOptions:
    """Options of `Worker.run()`.

    Parameters
    ----------
    poll_interval_ms:
        The longest pause of an idle worker, milliseconds. After work it looks again at once,
        then after 50 ms, and so on up to this.
    with_monitor:
        Run the timeout monitor inside this worker.
    monitor_check_interval_s:
        How often that monitor looks, seconds.
    with_scheduler:
        Run the scheduler of recurring tasks inside this worker.
    max_tasks:
        Stop after this many attempts; None: never.
    burst:
        Stop when no task is due.
    shutdown_timeout_s:
        How long handlers may go on after a stop before they are cancelled, seconds.
    heartbeat_interval_s, session_ttl_s:
        How often the worker's session is renewed, and how long it lives without, seconds.

    Raises
    ------
    ValueError, TypeError
        A value is out of range or no number.
    """

    poll_interval_ms: int = 1000
    with_monitor: bool = True
    monitor_check_interval_s: float = 15
    with_scheduler: bool = False
    max_tasks: int | None = None
    burst: bool = False
    shutdown_timeout_s: float = 30
    heartbeat_interval_s: float = 10
    session_ttl_s: float = 30

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(option.default, bool):
                if not isinstance(value, bool):
                    raise TypeError(f"{option.name} must be True or False, not {value!r}")
            elif option.name == "max_tasks":
                _check_max_tasks(value)
            else:
                _check_number(option.name, value)
        if self.session_ttl_s < 2 * self.heartbeat_interval_s:
            raise ValueError("session_ttl_s must be at least twice heartbeat_interval_s")


def _check_max_tasks(value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_tasks must be an integer or None, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"max_tasks must be at least 1, not {value}")


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    least = 0 if name == "shutdown_timeout_s" else 0.001
    if not least <= value <= 1e9:
        raise ValueError(f"{name} must be between {least} and 1e9, not {value}")

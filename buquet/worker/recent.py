"""A bounded memory of markers: `Recent`."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

REMEMBERED = 50_000
"""How many markers a worker remembers something about, some pages of a listing."""


class Recent:
    """A number for each of the markers noted last; beyond `REMEMBERED` the oldest are forgotten."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._numbers

    def get(self, key: str, default: float) -> float:
        """Return what was noted about `key`, or `default`."""
        return self._numbers.get(key, default)

    def setdefault(self, key: str, number: float) -> float:
        """Return what was noted about `key`; note `number` if nothing was."""
        if key not in self._numbers:
            self.put(key, number)
        return self._numbers[key]

    def put(self, key: str, number: float) -> None:
        """Note something about `key`."""
        self._numbers[key] = number
        self._numbers.move_to_end(key)
        if len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)

    def forget(self, key: str) -> None:
        """Forget `key`, if anything was noted about it."""
        self._numbers.pop(key, None)

    def forget_up_to(self, number: float) -> None:
        """Look at the two oldest: forget those whose number is not above `number`, renew the others.

        Called at each note, it keeps what is noted from outgrowing what is worth it.
        """
        for key in [*islice(self._numbers, 2)]:
            if self._numbers[key] > number:
                self._numbers.move_to_end(key)
            else:
                del self._numbers[key]

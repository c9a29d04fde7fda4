"""A bounded memory of markers: `Recent`."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

REMEMBERED = 50_000
"""How many markers a worker remembers something about, some pages of a listing."""

LOOKED_AT = 8
"""How many of the oldest notes are looked at when no new ones have come."""


class Recent(OrderedDict[str, float]):
    """A number for each of the markers noted last; beyond `REMEMBERED` the oldest are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = 0

    def put(self, key: str, number: float) -> None:
        """Note something about `key`."""
        self[key] = number
        self.move_to_end(key)
        self._noted += 1
        if len(self) > REMEMBERED:
            self.popitem(last=False)

    def forget_up_to(self, number: float) -> None:
        """Look at the oldest: forget those whose number is not above `number`, renew the others.

        It looks at twice as many as were noted since the last call, so that what is noted does not
        outgrow what is worth it.
        """
        count, self._noted = 2 * self._noted or LOOKED_AT, 0
        for key in [*islice(self, count)]:
            if self[key] > number:
                self.move_to_end(key)
            else:
                del self[key]

"""A queue in memory that runs in real time, because plain handlers run in threads."""

import pytest

from buquet.clock import SystemClock
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.memory import MemoryStore
from buquet.store.retry import Retrying


@pytest.fixture
def queue() -> Queue:
    clock = SystemClock()
    return Queue(Retrying(MemoryStore(clock), clock), Keys())

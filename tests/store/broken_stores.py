"""Stores that do not honour conditions, as some servers do not; each in its own way."""

from __future__ import annotations

from buquet.store.interface import Always, IfAbsent, IfMatches
from buquet.store.memory import MemoryStore


class IgnoresIfAbsent(MemoryStore):
    async def put(self, key, body, condition, **options):
        return await super().put(key, body, Always() if isinstance(condition, IfAbsent) else condition)


class IgnoresIfMatches(MemoryStore):
    async def put(self, key, body, condition, **options):
        return await super().put(key, body, Always() if isinstance(condition, IfMatches) else condition)


class CreatesOnIfMatches(MemoryStore):
    """What MinIO did before RELEASE.2025-09-07."""

    async def put(self, key, body, condition, **options):
        if isinstance(condition, IfMatches) and await self.head(key) is None:
            condition = Always()
        return await super().put(key, body, condition)


class ChecksThenWrites(MemoryStore):
    """A condition that is checked, but not in one step with the write."""

    async def put(self, key, body, condition, **options):
        found = await self.head(key)
        if isinstance(condition, IfAbsent) and found is not None:
            return None
        if isinstance(condition, IfMatches) and (found is None or found.etag != condition.etag):
            return None
        return await super().put(key, body, Always())


class SaysItLost(MemoryStore):
    async def put(self, key, body, condition, **options):
        written = await super().put(key, body, condition)
        return None if isinstance(condition, IfMatches) else written


class ChecksThenCreates(MemoryStore):
    """An `IfAbsent` that is checked, but not in one step with the write."""

    async def put(self, key, body, condition, **options):
        if isinstance(condition, IfAbsent):
            condition = Always() if await self.head(key) is None else condition
        return await super().put(key, body, condition)


class ChecksThenReplaces(MemoryStore):
    """An `IfMatches` that is checked, but not in one step with the write."""

    async def put(self, key, body, condition, **options):
        if isinstance(condition, IfMatches):
            found = await self.head(key)
            if found is not None and found.etag == condition.etag:
                condition = Always()
        return await super().put(key, body, condition)

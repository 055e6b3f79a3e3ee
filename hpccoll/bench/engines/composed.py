"""A collective made of two others, through another engine: the yardstick of `hpccoll.bench.guidelines`."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpccoll.bench.case import Buffers
from hpccoll.bench.engines.base import Bound, Engine
from hpccoll.comm import Comm

__all__ = ["ComposedEngine"]


class ComposedEngine(Engine):
    """`parts`, one after the other, through `engine`; the name is ``ENGINE:PART+PART``."""

    def __init__(self, engine: Engine, parts: tuple[str, str]) -> None:
        self._engine, self._parts = engine, parts
        self.name, self.kind = f"{engine.name}:{'+'.join(parts)}", engine.kind

    def refuses(self, collective: str, dtype: str, buffers: Buffers) -> str | None:
        if buffers.in_place:
            return "compositions have no form in place"
        if self._parts[0] == "reduce_scatter" and len(buffers.recv) % buffers.place.size:
            return f"{len(buffers.recv)} elements are no multiple of the {buffers.place.size} ranks"
        for part, its in zip(self._parts, self._buffers(buffers), strict=True):
            reason = self._engine.refuses(part, dtype, its)
            if reason:
                return reason
        return None

    def bind(self, collective: str, comm: Comm, buffers: Buffers) -> Bound:
        parts = zip(self._parts, self._buffers(buffers), strict=True)
        return self._engine.chain([self._engine.bind(part, comm, its) for part, its in parts])

    def _buffers(self, b: Buffers) -> tuple[Buffers, Buffers]:
        place = b.place._replace(root=0)
        out = b.recv if place.rank == 0 else None
        if self._parts == ("reduce", "broadcast"):
            return Buffers(b.send, out, b.op, place, False), Buffers(None, b.recv, "", place, False)
        if self._parts == ("gather", "broadcast"):
            return Buffers(b.send, out, "", place, False), Buffers(None, b.recv, "", place, False)
        blocks, shape = _stacked(b.send, place.size), _stacked(b.recv, place.size)
        own = _scratch(shape[0])
        return Buffers(blocks, own, b.op, place, False), Buffers(own, shape, "", place, False)


def _stacked(array: Any, blocks: int) -> Any:
    return array.reshape(blocks, -1)


def _scratch(like: Any) -> Any:
    return np.empty_like(like) if isinstance(like, np.ndarray) else like.clone()

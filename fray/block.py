"""The base class of objects that `with` and `async with` blocks end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from fray import sync


class Block(ABC):
    """An object that ends with its block. `async with` ends it in a thread, so other coroutines run on."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await sync.in_thread(lambda: self.__exit__(kind, error, at))

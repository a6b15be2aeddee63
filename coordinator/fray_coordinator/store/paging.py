"""Listing page by page, for callers that skip keys between two pages or need the time of each page."""

from collections.abc import AsyncIterator, Callable

from fray_coordinator.store.interface import ROWS_PER_REQUEST, Listed
from fray_coordinator.store.store import Store


async def list_pages(
    store: Store,
    prefix: str,
    size: int | None = None,
    next_after: Callable[[str], str] | None = None,
    versions: bool = False,
) -> AsyncIterator[list[Listed]]:
    """Yield the pages of a listing, each by a request that is made when the page is asked for.

    Args:
        size: rows of a full page. By default as many as one request returns; on local files, all rows.
        next_after: returns, for the last key of a full page, the key after which the next page begins. A key that sorts
            after the given one skips the keys between them. By default nothing is skipped.
        versions: as for `Store.list`.
    """
    if size is None and not store.local:
        size = ROWS_PER_REQUEST
    after: str | None = None
    while True:
        rows = await store.list(prefix, after, size, versions)
        yield rows
        if size is None or len(rows) < size:
            return
        last = rows[-1].key
        after = next_after(last) if next_after is not None else last

"""Objects that are pickled with their code keep the place of their source."""

import pickle
import traceback
from typing import Any

import pytest

from fray_runtime.pickling import pickled_by_value


def returned(value: Any) -> Any:
    return pickle.loads(pickled_by_value(value))


def test_code_keeps_the_path_of_its_source_so_that_tracebacks_name_it() -> None:
    def outer() -> Any:
        return lambda: 1 // 0

    division = returned(outer)()
    with pytest.raises(ZeroDivisionError) as caught:
        division()
    place = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (place.filename, place.line) == (__file__, "return lambda: 1 // 0")

from __future__ import annotations

from typing import Any

import pytest

from mindeval.service.runtime.models.select import Architecture
from mindeval.service.runtime.models.warm import WarmModels


def architecture(key: str) -> Architecture:
    adapter: Any = object()
    return Architecture(key, lambda: adapter)


def test_the_least_recently_used_architecture_goes() -> None:
    models = WarmModels(capacity=2)
    a, b, c = (architecture(key) for key in "abc")
    assert [models.get(x)[1] for x in (a, b, a, c, a, b)] == [False, False, True, False, True, False]


def test_a_failed_build_leaves_nothing() -> None:
    def fail() -> Any:
        raise ValueError("broken")

    models = WarmModels()
    with pytest.raises(ValueError, match="broken"):
        models.get(Architecture("a", fail))
    good = architecture("a")
    assert models.get(good)[1] is False
    models.drop_all()
    assert models.get(good)[1] is False

"""Which backends changes can be rendered for, and what is said of the others."""

from datetime import UTC, datetime

import pytest

from enforcer.backend_hami import HamiBackend
from fleet.errors import Misconfigured
from fleet.settings import Settings
from gputide.wiring import backend

NOW = datetime(2026, 3, 9, tzinfo=UTC)


def chosen(name: str) -> Settings:
    return Settings.model_validate({"enforcer": {"backend": name}})


def test_hami_is_rendered() -> None:
    assert isinstance(backend(chosen("hami"), NOW), HamiBackend)


@pytest.mark.parametrize("name", ["mig", "whole_cards"])
def test_a_backend_of_plans_alone_says_so(name: str) -> None:
    with pytest.raises(Misconfigured, match=f"'{name}': plans can be made for it and not applied yet; applied is hami"):
        backend(chosen(name), NOW)


def test_an_unknown_backend_names_those_that_can_be_applied() -> None:
    with pytest.raises(Misconfigured, match="'hamy': expected one of hami"):
        backend(chosen("hamy"), NOW)

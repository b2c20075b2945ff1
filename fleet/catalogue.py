"""Card models: framebuffer, SMs, power, MIG profiles and list prices, read from `card_models.toml` beside this file.

The pipeline fills in a card's framebuffer where a source names the model alone, the recommender plans MIG layouts and
prices with it, the demo builds its fleet from it. What was measured or set goes before it. Standard library only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from fleet.errors import Corrupt
from fleet.units import GIB, Money

_SHARED_SUFFIX = re.compile(r"(-SHARED|-MIG-[0-9]+g\.[0-9]+gb.*)$", re.IGNORECASE | re.ASCII)
_NAME_LENGTH_MAX = 128
_REPORTED_RATIO = 0.005
"""By so much sums of rounded counters may be more than a card is sold with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One MIG profile of one card model.

    Attributes:
        name: such as `3g.40gb`; `+me` has the media engines.
        memory_slices: memory slices of one instance, the size of its placement.
        starts: memory slices at which an instance may start.
        framebuffer_bytes: framebuffer of one instance; None where not verified.
        sms: SMs of one instance; None where not verified.
    """

    name: str
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    count_max: int
    framebuffer_bytes: int | None
    sms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFamily:
    """How a card model may be cut by MIG.

    Attributes:
        compute_slices: compute slices of the whole card.
        memory_slices: memory slices of the whole card.
        profiles: all profiles, smallest first.
    """

    name: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]


def share_media_engines(profiles: Iterable[str]) -> bool:
    """Whether instances of these profiles get along on one card: `+me` goes to one, beside `+me.all` are only `-me`."""
    names = list(profiles)
    with_engines = [name for name in names if "+me" in name]
    takes_all = any(name.endswith("+me.all") for name in with_engines)
    return len(with_engines) <= 1 and not (takes_all and any(not name.endswith(("+me.all", "-me")) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """A public price of one card hour.

    Attributes:
        date: month of the source, or in which it was read, `YYYY-MM`.
    """

    per_card_hour: Money
    basis: str
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """One card model.

    Attributes:
        name: as the driver prints it.
        aliases: as people and other tools write it.
        framebuffer_bytes: framebuffer as sold; what a driver reports is a little less.
        sms: streaming multiprocessors.
        half_tflops: dense half-precision tensor performance, 10¹² operations a second; None where not known.
        bandwidth_bytes_per_second: bandwidth of the framebuffer; None where not known.
        compute_capability: NVIDIA's (major, minor); None where not known.
        pcie_generation: of its link of 16 lanes to the host; None where not known.
        watts_max: power limit of the board.
        watts_idle: power at rest; None where no measurement is known.
        mig: how MIG may cut it; None for models without MIG.
        price: list price; None where no trustworthy source exists.
    """

    name: str
    aliases: tuple[str, ...]
    framebuffer_bytes: int
    sms: int
    half_tflops: float | None
    bandwidth_bytes_per_second: float | None
    compute_capability: tuple[int, int] | None
    pcie_generation: int | None
    watts_max: float
    watts_idle: float | None
    mig: MigFamily | None
    price: ListPrice | None

    def is_outgrown_by(self, framebuffer_bytes: int) -> bool:
        """Whether a card has more framebuffer than this model, so that other profiles may be cut from it.

        Boards with other memory go by the same name: of GB200 one prints 7g.186gb, another 7g.189gb for a whole card.
        """
        return framebuffer_bytes > self.framebuffer_bytes * (1.0 + _REPORTED_RATIO)


@lru_cache(maxsize=1)
def catalogue() -> tuple[CardModel, ...]:
    """All card models, in the file's order; read once per process.

    Raises:
        Corrupt: the installed catalogue is damaged.
    """
    return parse_catalogue(resources.files("fleet").joinpath("card_models.toml").read_text(encoding="utf-8"))


def find_model(name: str) -> CardModel | None:
    """The model that a name means, however a driver, a node label or a person writes it; None for an unknown one.

    Case, blanks, hyphens and a leading `NVIDIA` don't matter, nor do the suffixes `-SHARED` and `-MIG-…` that
    gpu-feature-discovery adds to its node label (NVIDIA/k8s-device-plugin:docs/gpu-feature-discovery/README.md).
    """
    return None if len(name) > _NAME_LENGTH_MAX else _named(name)


@lru_cache(maxsize=1024)
def _named(name: str) -> CardModel | None:
    """Asked for every card of a fleet, which has few models."""
    return _by_key().get(_key(_SHARED_SUFFIX.sub("", name.strip())))


def parse_catalogue(text: str) -> tuple[CardModel, ...]:
    """Reads a catalogue.

    Args:
        text: TOML with `mig_family` and `card_model` tables.

    Raises:
        Corrupt: not TOML, a field is missing or of the wrong type, or two models share a name.
    """
    try:
        document = tomllib.loads(text, parse_float=Decimal)
        families = {entry["name"]: _family(entry) for entry in document["mig_family"]}
        models = tuple(_model(entry, families) for entry in document["card_model"])
    except tomllib.TOMLDecodeError as exc:
        raise Corrupt(f"cannot read the catalogue of card models: not valid TOML: {exc}") from exc
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as exc:
        reason = repr(exc)[:200]
        raise Corrupt(f"cannot read the catalogue of card models: a field is missing or wrong: {reason}") from exc
    _index(models)
    return models


@lru_cache(maxsize=1)
def _by_key() -> Mapping[str, CardModel]:
    return MappingProxyType(_index(catalogue()))


def _index(models: tuple[CardModel, ...]) -> dict[str, CardModel]:
    index: dict[str, CardModel] = {}
    for model in models:
        for key in {_key(name) for name in (model.name, *model.aliases)}:
            if key in index:
                raise Corrupt(
                    f"cannot read the catalogue of card models: {index[key].name} and {model.name} share {key!r}"
                )
            index[key] = model
    return index


def _key(name: str) -> str:
    letters = "".join(letter for letter in name.casefold() if letter.isalnum())
    return letters.removeprefix("nvidia").removeprefix("tesla")


def _family(entry: Mapping[str, Any]) -> MigFamily:
    return MigFamily(
        name=entry["name"],
        compute_slices=int(entry["compute_slices"]),
        memory_slices=int(entry["memory_slices"]),
        profiles=tuple(_profile(profile) for profile in entry["profiles"]),
    )


def _profile(entry: Mapping[str, Any]) -> MigProfile:
    name: str = entry["name"]
    return MigProfile(
        name=name,
        compute_slices=int(name.partition("g.")[0]),
        memory_slices=int(entry["size"]),
        starts=tuple(int(start) for start in entry["starts"]),
        count_max=int(entry["count_max"]),
        framebuffer_bytes=_gib(entry["framebuffer_gib"]) if "framebuffer_gib" in entry else None,
        sms=int(entry["sms"]) if "sms" in entry else None,
    )


def _model(entry: Mapping[str, Any], families: Mapping[str, MigFamily]) -> CardModel:
    return CardModel(
        name=entry["name"],
        aliases=tuple(entry.get("aliases", ())),
        framebuffer_bytes=_gib(entry["framebuffer_gib"]),
        sms=int(entry["sms"]),
        half_tflops=float(entry["half_tflops"]) if "half_tflops" in entry else None,
        bandwidth_bytes_per_second=(
            float(entry["bandwidth_gb_per_second"]) * 1e9 if "bandwidth_gb_per_second" in entry else None
        ),
        compute_capability=_capability(entry["compute_capability"]) if "compute_capability" in entry else None,
        pcie_generation=int(entry["pcie_generation"]) if "pcie_generation" in entry else None,
        watts_max=float(entry["watts_max"]),
        watts_idle=float(entry["watts_idle"]) if "watts_idle" in entry else None,
        mig=families[entry["mig_family"]] if "mig_family" in entry else None,
        price=_price(entry["price"]) if "price" in entry else None,
    )


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _price(entry: Mapping[str, Any]) -> ListPrice:
    return ListPrice(
        per_card_hour=Money(amount=Decimal(entry["amount"]), currency=entry["currency"]),
        basis=entry["basis"],
        source=entry["source"],
        date=entry["date"],
    )


def _gib(value: int | Decimal) -> int:
    return int(value * GIB)

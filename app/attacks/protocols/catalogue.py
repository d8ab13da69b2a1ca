"""Protocols by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from app.attacks.protocols.base import Protocol
from app.attacks.protocols.mapp_fl import MappFL
from app.attacks.protocols.memdefense import MemDefensePaper
from app.attacks.protocols.taxonomy import Taxonomy
from app.attacks.protocols.waffle import WafflePaper

ProtocolName = Literal["audit", "mapp-fl", "taxonomy", "memdefense", "waffle"]

PAPERS: dict[str, Callable[[Sequence[str] | None], Protocol]] = {
    "mapp-fl": MappFL,
    "taxonomy": Taxonomy,
    "memdefense": MemDefensePaper,
    "waffle": WafflePaper,
}
"""Papers' protocols by name; each takes the names of the attacks to run, None for all that the paper has."""

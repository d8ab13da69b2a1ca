"""Reconstruction attacks by name."""

from __future__ import annotations

from app.attacks.naming import by_name
from app.attacks.reconstruction.active.base import ActiveAttack
from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.imprint import Imprint
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.attacks.reconstruction.inversion.released_model import DeepInversionAttack, ModelInversion
from app.attacks.reconstruction.inversion.uploads import DenseInversion, GradientInversion, PassiveAttack

ACTIVE: dict[str, type[ActiveAttack]] = {
    kind.name: kind for kind in (RollingModel, ConvergenceRate, TrapServer, Imprint)
}
"""Attacks by a malicious server, by name."""

PASSIVE: dict[str, type[PassiveAttack]] = {
    kind.name: kind for kind in (DenseInversion, GradientInversion, ModelInversion, DeepInversionAttack)
}
"""Passive attacks, by name."""


def make_active(attack: str | ActiveAttack) -> ActiveAttack:
    """A malicious server's attack with default settings, by name or class path; attacks are returned as they are."""
    # mypy takes the base class for the class to create; all that can be named are concrete
    return by_name(attack, ACTIVE, ActiveAttack, "attack by a malicious server")  # type: ignore[type-abstract]


def make_passive(attack: str | PassiveAttack) -> PassiveAttack:
    """A passive attack with default settings, by name or class path; attacks are returned as they are."""
    return by_name(attack, PASSIVE, PassiveAttack, "reconstruction")  # type: ignore[type-abstract]

"""Reconstruction attacks by name."""

from __future__ import annotations

from app.attacks.naming import by_name
from app.attacks.reconstruction.active.base import ActiveAttack
from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.attacks.reconstruction.base import ReconstructionAttack
from app.attacks.reconstruction.inversion.released_model import DeepInversionAttack, ModelInversion
from app.attacks.reconstruction.inversion.uploads import DenseInversion, GradientInversion, PassiveAttack

ACTIVE: dict[str, type[ActiveAttack]] = {kind.name: kind for kind in (RollingModel, ConvergenceRate, TrapServer)}
"""Attacks by a malicious server, by name."""

PASSIVE: dict[str, type[PassiveAttack]] = {
    kind.name: kind for kind in (DenseInversion, GradientInversion, ModelInversion, DeepInversionAttack)
}
"""Attacks that only look, by name."""


def make_active(given: str | ActiveAttack) -> ActiveAttack:
    """A malicious server's attack with its usual settings, by name or class; attacks are returned as they are.

    Raises:
        UserError: for a name that means nothing.
    """
    # a class is abstract by its annotation only: all that can be named are concrete
    return by_name(given, ACTIVE, ActiveAttack, "attack by a malicious server")  # type: ignore[type-abstract]


def make_passive(given: str | PassiveAttack) -> PassiveAttack:
    """An attack that only looks, with its usual settings, by name or class; attacks are returned as they are.

    Raises:
        UserError: for a name that means nothing.
    """
    return by_name(given, PASSIVE, PassiveAttack, "reconstruction")  # type: ignore[type-abstract]


def make_reconstruction(given: str | ActiveAttack | PassiveAttack) -> ActiveAttack | PassiveAttack:
    """An attack of either kind with its usual settings, by name or class; attacks are returned as they are.

    Raises:
        UserError: for a name that means nothing.
    """
    known: dict[str, type[ReconstructionAttack]] = {**ACTIVE, **PASSIVE}
    attack = by_name(given, known, ReconstructionAttack, "reconstruction")
    assert isinstance(attack, (ActiveAttack, PassiveAttack))
    return attack

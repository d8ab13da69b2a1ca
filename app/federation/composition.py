"""Whether the defenses of a run go together with each other, with the attacks and with the federation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from app.errors import Problem
from app.federation.hooks import federated_callbacks
from app.models.norms import uses_batch_statistics
from app.privacy.compatibility import Clash, clashes
from app.privacy.traits import Part, Trait

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


def defense_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Everything that forbids the stack of callbacks: their own settings, and what they are combined with."""
    for callback in federated_callbacks(federation.trainer):
        for problem in callback.problems(federation):
            yield replace(problem, remedy=problem.remedy.replace(".NAME.", f".{callback.given_name}."))
    yield from (clash.problem for clash in _clashes(federation) if clash.rule.severity == "error")


def warn_of_defenses(federation: FederatedModule) -> None:
    """Tell what is questionable about the stack; only the first process speaks."""
    if not federation.trainer.is_global_zero:
        return
    for clash in _clashes(federation):
        if clash.rule.severity == "warning":
            problem = clash.problem
            warnings.warn(f"{problem.cause}: {problem.consequence}. Remedy: {problem.remedy}.", stacklevel=2)


def composition_notes(federation: FederatedModule) -> list[str]:
    """Remarks on combinations that are sound but worth knowing of, and on those that were warned of."""
    found = [clash for clash in _clashes(federation) if clash.rule.severity != "error"]
    return [f"{clash.problem.cause}: {clash.problem.consequence}" for clash in found]


def stack_traits(federation: FederatedModule) -> frozenset[Trait]:
    """What the callbacks of a run do to privacy, all together."""
    return frozenset[Trait]().union(*(callback.traits() for callback in federated_callbacks(federation.trainer)))


def _clashes(federation: FederatedModule) -> Iterator[Clash]:
    return clashes([*_settings(federation), *_callbacks(federation)])


def _callbacks(federation: FederatedModule) -> Iterator[Part]:
    for place, callback in enumerate(federated_callbacks(federation.trainer)):
        if traits := callback.traits():
            yield Part(type(callback).__name__, traits, place)


def _settings(federation: FederatedModule) -> Iterator[Part]:
    """What the federation itself does."""
    settings: list[tuple[str, Trait, bool]] = [
        ("batch norm", "batch-norm", uses_batch_statistics(federation.net)),
        ("running statistics", "running-statistics", federation.space.trainable < federation.space.size),
        ("model.local.mask_labels", "label-masks", federation.local.mask_labels),
        ("a server that weighs clients by their loss", "loss-weights", weighs_by_loss(federation)),
        ("model.sampling fixed", "fixed-participation", _fixed(federation)),
        ("widths drawn step by step", "ordered-dropout", federation.method.local_widths is not None),
        ("a network with a private choice of factors", "hidden-choice", bool(federation.net.private_names())),
    ]
    for name, trait, present in settings:
        if present:
            yield Part(name, frozenset({trait}))


def weighs_by_loss(federation: FederatedModule) -> bool:
    """Whether clients count by their loss, which is private."""
    return federation.make_server(federation.net.parameters()).needs_received_loss


def _fixed(federation: FederatedModule) -> bool:
    return federation.participation < 1 and federation.sampling == "fixed"

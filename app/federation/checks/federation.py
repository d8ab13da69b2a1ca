"""What must hold before a federation starts: settings, network, stack of defenses; all problems at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import EarlyStopping

from app.common.described import described
from app.common.errors import Problem, UserError
from app.common.ranges import range_problems
from app.common.wording import counted
from app.federation.checks.optimisers import optimiser_problems
from app.federation.checks.placement import SHIPPED, Placed, repeat_problems
from app.federation.checks.trainer_options import monitor_problems, trainer_problems
from app.federation.ditto import ditto_problems
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.parameters import ParameterSpace
from app.federation.private_coordinates import uploaded_coordinates
from app.federation.scaffold import scaffold_problems
from app.federation.submodels import Prefix, SubmodelMethod
from app.models.norms import uses_batch_statistics
from app.privacy.compatibility import Clash, clashes
from app.privacy.traits import Component, Trait
from datamodules.base import FederatedDataModule

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


NOTHING_SENT = "every weight stays on its client"


def federation_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems of a federation's settings, its data and its trainer."""
    data = getattr(federation.trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise UserError.of(
            "the federation has no federated data",
            "there are no clients to train",
            "pass a FederatedDataModule: trainer.fit(federation, datamodule=Digits())",
        )
    outside = list(setting_problems(federation))
    yield from outside
    if not outside:  # these presume that numbers are in their ranges
        yield from federation.local.problems()
        refused = list(optimiser_problems(federation.local, max(1, federation.trainer.max_epochs or 1)))
        yield from refused or ditto_problems(federation)
        yield from federation.newcomers.problems(data.groups)
        yield from federation.capacities.problems(data.clients)
    yield from trainer_problems(federation)


def setting_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Numbers outside their ranges, in the settings of the federation, its data and all callbacks."""
    yield from range_problems(federation, "model")
    yield from range_problems(getattr(federation.trainer, "datamodule", None), "data")
    for callback in federated_callbacks(federation.trainer):
        option = "" if callback.kind == "recorder" else f"{callback.kind}s.{callback.given_name}"
        for problem in range_problems(callback, option):
            yield replace(problem, cause=f"{problem.cause} ({type(callback).__name__})")


def network_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems that show once the network is built."""
    yield from monitor_problems(federation)
    if (rate := federation.net.hparams.get("rate", 1.0)) != 1:
        yield Problem(
            f"the server's network has {rate:g} of its width",
            "clients could not be given parts of it",
            "leave out --model.net.rate; --model.capacities says how wide the clients' networks are",
        )
        return
    if federation.net.private_names() and min(federation.client_pool.capacities) < 1:
        yield Problem(
            f"clients of width {min(federation.client_pool.capacities):g} with {type(federation.net).__name__}",
            "its factors are numbered on their own, so a choice of channels says nothing about them: WAFFLe and "
            "submodels do not go together",
            "set --model.capacities '[1.0]', or use the network without factors",
        )
        return
    if federation.newcomers.dictionary < 1:
        yield from _growth_problems(federation)
    yield from submodel_problems(
        federation.method, federation.space, federation.client_pool.capacities, type(federation.net).__name__
    )
    widths = federation.widths
    for width, _ in federation.local.lr_factors:
        if all(abs(width - rate) >= 1e-9 for rate in widths):
            yield Problem(
                f"local.lr_factors names width {width:g}",
                "no client has it, so its factor would have no effect",
                f"name one of {', '.join(f'{rate:g}' for rate in widths)}",
            )
    if federation.local.scaffold:
        yield from scaffold_problems(federation)
    if uses_batch_statistics(federation.net) and federation.local.batch_size < 2:
        yield Problem(
            "local.batch_size is 1 and the network has batch norm",
            "batch norm cannot take statistics over one sample",
            "set --model.local.batch_size to 2 or more, or --model.net.norm group",
        )
    alone = [client for client, size in enumerate(federation.data.sizes) if size < 2]
    if alone and uses_batch_statistics(federation.net):
        yield Problem(
            f"{counted(len(alone), 'client')} with a single training sample (client {alone[0]}, for one)",
            "batch norm cannot take statistics over one sample",
            "set --model.net.norm group, or give clients more data: --data.partition",
        )


def _growth_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems of a dictionary of weight factors that grows during the training."""
    keep = "or set --model.newcomers.dictionary 1"
    if not federation.net.private_names():
        yield Problem(
            f"a dictionary that grows, but {type(federation.net).__name__} has no weight factors",
            "nothing would grow",
            f"set --model.net app.models.Factorised, {keep}",
        )
    if type(federation.method) is not Prefix:
        yield Problem(
            f"a dictionary that grows under {federation.method.title}",
            "clients would train other factors than the first ones before it grows",
            f"leave --model.method out, {keep}",
        )
    if federation.uncovered_cells == "zero":
        yield Problem(
            "a dictionary that grows, where weights that no client uploads become zero",
            "the factors that are added would be zero, and could not be trained",
            f"set --model.uncovered_cells keep, {keep}",
        )


def submodel_problems(
    method: SubmodelMethod, space: ParameterSpace, capacities: tuple[float, ...], net: str
) -> Iterator[Problem]:
    """Problems of submodels for clients of these capacities; `net` is the network's name, for the messages."""
    yield from method.problems(space, capacities, len(capacities))
    narrowest = min(method.rates(capacities))
    if narrowest < 1 and not space.axes:
        yield Problem(
            f"{net} declares no channel axes",
            f"it cannot be cut to width {narrowest:g}: every client would train the whole network",
            f"name the axes in `layer_axes()` of {net}, or set --model.capacities '[1.0]'",
        )
    if empty := [axis for axis in space.axes.values() if 0 < narrowest * axis.width < 1 - 1e-6]:
        least = 1 / min(axis.width for axis in empty)
        yield Problem(
            f"a client of width {narrowest:g} has less than one channel in {', '.join(axis.name for axis in empty)}",
            f"the narrowest layer has {min(axis.width for axis in empty)} channels in the server's network",
            f"give clients at least {least:.3g} of the width (--model.capacities and the method's levels), "
            "or widen the network (--model.net)",
        )


def defense_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems of the callbacks' own settings, and of their combination."""
    callbacks = federated_callbacks(federation.trainer)
    yield from repeat_problems([_placed(one) for one in callbacks if type(one).__module__.startswith(SHIPPED)])
    for callback in callbacks:
        for problem in callback.problems(federation):
            yield replace(problem, remedy=problem.remedy.replace(".NAME.", f".{callback.given_name}."))
    yield from (clash.problem for clash in _clashes(federation) if clash.rule.severity == "error")


def warn_of_defenses(federation: FederatedModule) -> None:
    """Warn of questionable combinations of defenses, on the first process only."""
    if not federation.trainer.is_global_zero:
        return
    for clash in _clashes(federation):
        if clash.rule.severity == "warning":
            problem = clash.problem
            warnings.warn(f"{problem.cause}: {problem.consequence}. Remedy: {problem.remedy}.", stacklevel=2)


def composition_notes(federation: FederatedModule) -> list[str]:
    """Remarks on combinations of defenses that are sound but worth knowing, and on those warned of."""
    remarks = [clash for clash in _clashes(federation) if clash.rule.severity != "error"]
    return [f"{clash.problem.cause}: {clash.problem.consequence}" for clash in remarks]


def unaccounted(federation: FederatedModule) -> list[str]:
    """Why no budget counts everything that the run tells of private data: it stops, or clients refuse, by them."""
    found = [clash.problem for clash in _clashes(federation) if clash.rule.second in ("stops-early", "refuses-by-data")]
    return [f"{problem.cause}: {problem.consequence}" for problem in found]


def stack_traits(federation: FederatedModule) -> frozenset[Trait]:
    """What all callbacks of a run together do to privacy."""
    return frozenset[Trait]().union(*(callback.traits() for callback in federated_callbacks(federation.trainer)))


def unsent_problems(defenses: Iterable[FederatedCallback]) -> Iterator[Problem]:
    """Defenses of what clients send, where every weight stays on its client."""
    parts = [Component(type(defense).__name__, defense.traits()) for defense in defenses]
    nothing = Component(NOTHING_SENT, frozenset({"nothing-sent"}))
    yield from (clash.problem for clash in clashes([nothing, *parts]) if clash.rule.first == "nothing-sent")


def _placed(callback: FederatedCallback) -> Placed:
    unnamed = callback.given_name == FederatedCallback.given_name
    return Placed("", "" if unnamed else callback.given_name, type(callback), described(callback))


def _clashes(federation: FederatedModule) -> Iterator[Clash]:
    return clashes([*_settings(federation), *_callbacks(federation)])


def _callbacks(federation: FederatedModule) -> Iterator[Component]:
    for place, callback in enumerate(federated_callbacks(federation.trainer)):
        if traits := callback.traits():
            yield Component(type(callback).__name__, traits, place)


def _settings(federation: FederatedModule) -> Iterator[Component]:
    monitored = _private_monitors(federation)
    fixed = federation.participation < 1 and federation.sampling == "fixed"
    sends_statistics = bool(uploaded_coordinates(federation)[federation.space.trainable :].any())
    settings: list[tuple[str, Trait, bool]] = [
        ("batch norm", "batch-norm", uses_batch_statistics(federation.net)),
        ("running statistics", "running-statistics", sends_statistics),
        ("model.local.mask_labels", "label-masks", federation.local.mask_labels),
        ("a server that weighs clients by their loss", "loss-weights", weighs_by_loss(federation)),
        ("model.sampling fixed", "fixed-participation", fixed),
        ("widths drawn step by step", "ordered-dropout", federation.method.local_widths is not None),
        (f"early stopping by {', '.join(monitored)}", "stops-early", bool(monitored)),
        (NOTHING_SENT, "nothing-sent", federation.personal.everything),
        ("model.local.scaffold", "control-variates", federation.local.scaffold),
        ("model.ditto", "own-models", federation.ditto is not None),
        ("a network with a private choice of factors", "hidden-choice", bool(federation.net.private_names())),
    ]
    for name, trait, present in settings:
        if present:
            yield Component(name, frozenset({trait}))


def _private_monitors(federation: FederatedModule) -> list[str]:
    """Metrics by which Lightning's early stopping ends the run, except the server's on the common test set."""
    callbacks = federation.trainer.callbacks  # type: ignore[attr-defined]
    monitors = [str(callback.monitor) for callback in callbacks if isinstance(callback, EarlyStopping)]
    return [monitor for monitor in monitors if not monitor.startswith("server/")]


def weighs_by_loss(federation: FederatedModule) -> bool:
    """Whether clients are weighted by their loss, which is private."""
    return federation.make_server(federation.net.parameters()).needs_received_loss

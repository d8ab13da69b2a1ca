"""The evaluation of the taxonomy of integration methods: three attacks on every client's last upload.

The attacker owns the data of all other clients. Shadows and students have the server's width, whatever the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.special import logit, ndtr
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.optim import SGD, Adam

from app.attacks.findings import Conditions, Figure, Finding
from app.attacks.lab import progress
from app.attacks.membership.attack_net import choice_problem, dense, fit, option_problems, predict, seeded
from app.attacks.membership.base import Threat
from app.attacks.membership.trajectory import HIDDEN, TeacherMode
from app.attacks.models import AttackedModel, Snapshot
from app.attacks.protocols.base import Protocol, guarded
from app.attacks.protocols.choices import Choice, seen_models
from app.attacks.protocols.knowledge import (
    OFFICIAL_TEST,
    LabelledSets,
    ask_in_order,
    chosen_attacks,
    client_figure,
    concluded,
    evaluated_rows,
    grid_threshold,
    joined,
    known_count,
    legacy_order,
    nearest_tpr,
    unit_scores,
)
from app.attacks.public import Public
from app.attacks.query import Oracle
from app.attacks.responses import Ids, Responses
from app.attacks.shadows.book import train_or_find
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import Job, initial_vector
from app.attacks.world import World
from app.errors import UserError, raise_all
from app.federation.evaluation import evaluates_by_batch, statistics_context
from app.federation.local import LocalTraining, merge_short
from app.federation.parameters import FlatNet, ParameterSpace
from app.federation.processes import precise
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.roc import Decision, roc_curve
from app.metrics.thresholds import decide
from app.models.base import ScalableNet
from app.models.layers import seed_dropout
from app.models.norms import uses_batch_statistics
from app.seeding import derive_key, torch_generator

MOST_EVALUATED = 5000
BATCH = 128
"""Samples per step of every training, and per query; members and non-members are asked for apart."""

CLIP = 1e-4
"""Distance from 0 and 1 that the code keeps of the largest probability."""

LOW_FPR = 0.001
"""The tables' 0.1 %; the text's "0.1 (10%)" (sec. IV-A) does not fit their values."""

Confidence = Literal["true", "max"]
"""Probability of the true class, as the paper says (App. B-B), or the largest one, as its code has it."""


@dataclass(frozen=True)
class TaxonomySettings:
    """Sizes and readings; those that the paper has are the defaults of `Taxonomy`."""

    shadows: int
    shadow_size: int
    shadow_epochs: int
    conf: Confidence
    ordered_quarters: bool
    teacher_mode: TeacherMode
    student_epochs: int
    attack_epochs: int


@dataclass(frozen=True, eq=False)
class Side:
    """Networks of one kind, and who asks them."""

    public: Public
    oracle: Oracle

    def ask(self, snapshot: Snapshot, parts: Sequence[Ids]) -> Responses:
        """Answers to the parts, each asked for by itself."""
        return joined([ask_in_order(self.public, self.oracle, snapshot, part, BATCH) for part in parts])


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of one target.

    Attributes:
        ranks: of the evaluated samples, any scale.
        evaluated: the same from 0 to 1, for the threshold.
        known: of the samples that the attacker knows, from 0 to 1.
    """

    ranks: Array
    evaluated: Array
    known: Array


class Bench:
    """What the attacks on one run have in common: targets as they are, shadows with running statistics.

    Attributes:
        world: the run under attack.
        settings: sizes and readings.
        notes: remarks of the attack that is running.
        targets: the clients' networks.
        shadows: networks of shadows and students.
    """

    def __init__(self, world: World, settings: TaxonomySettings) -> None:
        self.world, self.settings = world, settings
        self.notes: list[str] = []
        recipe = LocalTraining(epochs=settings.shadow_epochs, batch_size=BATCH, optimizer=partial(Adam, lr=1e-3))
        # One round of many epochs: the optimiser is new in every round.
        own = replace(
            world.public, prototype=_with_averages(world.public.prototype), local=recipe, learning_rates=(1e-3,)
        )
        self.targets, self.shadows = Side(world.public, world.oracle), Side(own, Oracle(own))
        self._cache = ShadowCache(world.cache)

    def auxiliary(self, client: int) -> Ids:
        """Members of all other clients, one client after the other."""
        others = [own for other, own in enumerate(self.world.truth.members) if other != client]
        if sum(map(len, others)) < 8:
            raise UserError.of(
                f"the clients beside client {client} have {sum(map(len, others))} samples",
                "the attacker of this paper trains its shadows on them",
                "use more clients, or --attacks.membership.protocol audit",
            )
        return np.concatenate(others)

    def train(self, sets: Sequence[Ids], purpose: str, client: int) -> list[AttackedModel]:
        """Models of the server's width, one per training set."""
        jobs = [Job(number, 1.0, samples) for number, samples in enumerate(sets)]
        seed = derive_key(self.world.public.seed, f"taxonomy-{purpose}", client)
        return train_or_find(self.shadows.public, jobs, (1,), seed, self._cache)


def yeom(bench: Bench, model: AttackedModel, sets: LabelledSets) -> Scored:
    """Losses (App. B-A), scaled to 0 .. 1 apart for known and for evaluated samples."""
    losses, known = _halves(bench.targets.ask(model.last, _parts(sets)).losses, sets)
    return Scored(-losses, unit_scores(losses), unit_scores(known))


def lira(bench: Bench, model: AttackedModel, sets: LabelledSets) -> Scored:
    """Offline LiRA (App. B-B): where the target's confidence lies among those of shadows without the sample."""
    settings, auxiliary, parts = bench.settings, bench.auxiliary(model.client), _parts(sets)
    if len(auxiliary) <= settings.shadow_size:
        bench.notes.append(f"all shadows are trained on the same samples: there are no {settings.shadow_size} to draw")
    drawn = [legacy_order(auxiliary, number)[: settings.shadow_size] for number in range(settings.shadows)]
    shadows = bench.train(drawn, "lira", model.client)
    heard = [confidences(bench.shadows.ask(shadow.last, parts), settings.conf) for shadow in shadows]
    scores = normal_cdf(confidences(bench.targets.ask(model.last, parts), settings.conf), np.stack(heard))
    evaluated, known = _halves(scores, sets)
    return Scored(evaluated, evaluated, known)


def tmia(bench: Bench, model: AttackedModel, sets: LabelledSets) -> Scored:
    """tMIA (App. B-C): a network trained on one shadow reads the losses of a student and of the target itself."""
    members, nonmembers, rest = quarters(bench, model.client)
    (shadow,) = bench.train([members], "tmia", model.client)
    learned = _trajectories(bench, bench.shadows, shadow.last, rest, [members, nonmembers])
    read = _trajectories(bench, bench.targets, model.last, rest, _parts(sets))
    truth = torch.arange(len(learned)) < len(members)
    seed, device = derive_key(bench.world.public.seed, "taxonomy-attack-net", model.client), learned.device
    net = seeded(lambda: nn.Sequential(dense(learned.shape[1], *HIDDEN, 2), SoftmaxGap()), seed, device)
    fit(
        net,
        [learned],
        truth.to(device),
        epochs=bench.settings.attack_epochs,
        batch_size=BATCH,
        optimizer=partial(SGD, lr=0.005, momentum=0.9, weight_decay=1e-4),
        loss="bce",
        seed=seed,
    )
    evaluated, known = _halves((predict(net, [read]) + 1) / 2, sets)
    return Scored(evaluated, evaluated, known)


ATTACKS: dict[str, Callable[[Bench, AttackedModel, LabelledSets], Scored]] = {"yeom": yeom, "lira": lira, "tmia": tmia}

_KNOWS = "labelled members of the target"
THREATS = {
    "yeom": Threat(sees="loss on the sample", data=_KNOWS, trains="nothing"),
    "lira": Threat(sees="probabilities", data=f"{_KNOWS}, all other clients' data", trains="shadow models"),
    "tmia": Threat(
        sees="answers to any query",
        data=f"{_KNOWS}, all other clients' data",
        trains="a shadow, students of target and shadow, attack network",
    ),
}


class SoftmaxGap(nn.Module):
    """Probability of the member class minus that of the other, -1 to 1.

    The paper's attack network ends in a softmax whose outputs enter the cross-entropy as if they were logits; of two
    logits only the difference counts, so this difference is the logit of a binary cross-entropy.
    """

    def forward(self, logits: Tensor) -> Tensor:
        """(rows,) from (rows, 2)."""
        chances = logits.softmax(1)
        return chances[:, 1] - chances[:, 0]


def confidences(responses: Responses, conf: Confidence) -> Array:
    """(samples,) logit of the true class's probability, or of the largest one kept 1e-4 away from 0 and 1."""
    if conf == "true":
        return responses.margins
    return np.asarray(logit(np.clip(responses.probabilities.max(axis=1), CLIP, 1 - CLIP)))


def normal_cdf(target: Array, shadows: Array) -> Array:
    """(samples,) from 0 to 1: normal distribution at the target's value, with mean and deviation of the shadows.

    Args:
        target: (samples,) of the attacked model.
        shadows: (models, samples); where all of them agree, the distribution is a step.
    """
    away, spread = target - shadows.mean(axis=0), shadows.std(axis=0)
    steps = np.where(away == 0, 0.0, np.copysign(np.inf, away))
    return np.asarray(ndtr(np.where(spread > 0, away / np.where(spread > 0, spread, 1.0), steps)))


def quarters(bench: Bench, client: int) -> tuple[Ids, Ids, Ids]:
    """Members and non-members of tMIA's shadow, a quarter of the attacker's data each, and the rest to distil on."""
    auxiliary = bench.auxiliary(client)
    if not bench.settings.ordered_quarters:
        np.random.default_rng(bench.world.public.seed).shuffle(auxiliary)
    quarter = len(auxiliary) // 4
    return auxiliary[:quarter], auxiliary[quarter : 2 * quarter], auxiliary[2 * quarter :]


def _trajectories(bench: Bench, side: Side, teacher: Snapshot, data: Ids, parts: Sequence[Ids]) -> Tensor:
    """(samples, epochs + 1) losses of a student after every epoch, and of its teacher."""
    stages = distil(side, teacher, bench.shadows.public, data, bench.settings)
    losses = [bench.shadows.ask(stage, parts).losses for stage in stages]
    losses.append(side.ask(teacher, parts).losses)
    return torch.from_numpy(np.stack(losses, axis=1)).float().to(bench.world.public.device)


def distil(side: Side, teacher: Snapshot, public: Public, data: Ids, settings: TaxonomySettings) -> list[Snapshot]:
    """A student of the server's width after every epoch: plain SGD at 0.01 on KL(teacher || student), temperature 1.

    Args:
        side: of the teacher.
        teacher: the distilled model, of any width.
        public: network and augmentation of the student.
        data: ids to distil on.
        settings: epochs, and the teacher's mode.
    """
    guide = side.oracle.network(teacher).train(settings.teacher_mode == "train")
    with torch.random.fork_rng(devices=[]):
        student = public.prototype.scaled(1.0).to(public.device, public.dtype).train()
    flat = FlatNet(ParameterSpace(student), student)
    flat.write(initial_vector(public, 1.0, derive_key(public.seed, "taxonomy-student")))
    for net in (guide, student):
        seed_dropout(net, torch_generator(public.seed, "taxonomy-dropout", device=public.device))
    descent, stages = SGD(student.parameters(), lr=1e-2), []
    with _teaching(public, guide, data):
        for epoch in progress(range(1, settings.student_epochs + 1), "distillation"):
            for images in _batches(public, data, epoch):
                descent.zero_grad()
                _divergence(public, guide, student, images).backward()
                descent.step()
            stages.append(Snapshot(epoch, 1.0, flat.read().cpu()))
    return stages


def _teaching(public: Public, teacher: nn.Module, data: Ids) -> AbstractContextManager[None]:
    """Where a teacher in evaluation mode gets the statistics that it was not trained to keep."""
    if teacher.training:
        return nullcontext()
    return statistics_context(teacher, public.store, torch.from_numpy(data), BATCH)


def _batches(public: Public, data: Ids, epoch: int) -> Iterator[Tensor]:
    order = torch.randperm(len(data), generator=torch_generator(public.seed, "taxonomy-distillation", epoch))
    crops = torch_generator(public.seed, "taxonomy-augmentation", epoch)
    for batch in merge_short(torch.from_numpy(data)[order].split(BATCH), least=2):
        images, _ = public.store.batch(batch, public.dtype)
        yield images if public.augment is None else public.augment(images, crops)


def _divergence(public: Public, teacher: nn.Module, student: nn.Module, images: Tensor) -> Tensor:
    with public.precision():
        with torch.no_grad():
            wanted = teacher(images)
        answered = student(images)
    wide = precise(images.device)
    logs = (answered.to(wide).log_softmax(1), wanted.to(wide).log_softmax(1))
    return kl_div(*logs, reduction="batchmean", log_target=True)


def _parts(sets: LabelledSets) -> list[Ids]:
    return [sets.members, sets.nonmembers, sets.known_members, sets.known_nonmembers]


def _halves(values: Array, sets: LabelledSets) -> tuple[Array, Array]:
    """Values of the evaluated and of the known samples."""
    count = len(sets.members) + len(sets.nonmembers)
    return values[:count], values[count:]


def _with_averages(net: ScalableNet) -> ScalableNet:
    """The network with running statistics, which the paper's shadows and students have and its targets have not."""
    if not (uses_batch_statistics(net) and "statistics" in net.hparams):
        return net
    like = next(net.parameters())
    with torch.random.fork_rng(devices=[]):
        return type(net)(**{**net.hparams, "statistics": "running"}).to(like.device, like.dtype)


class Taxonomy(Protocol):
    """Yeom, LiRA and tMIA as in the taxonomy's sec. IV-A and App. B, with the sets of its code.

    The attacker picks a threshold on samples it knows; AUC, advantage and TPR at 0.1 % FPR are given in percent, and
    the mean AUC of the attacks, which the paper's figures show.
    """

    name = "taxonomy"
    possible = ("yeom", "lira", "tmia")

    def __init__(
        self,
        attacks: Sequence[str] | None = None,
        *,
        shadows: int = 16,
        shadow_size: int = 10_000,
        shadow_epochs: int = 100,
        conf: Confidence = "true",
        ordered_quarters: bool = False,
        teacher_mode: TeacherMode = "eval",
        student_epochs: int = 25,
        attack_epochs: int = 30,
    ) -> None:
        """Follow the paper.

        Args:
            attacks: some of `yeom`, `lira` and `tmia`.
            shadows: shadow models of LiRA per client.
            shadow_size: samples that each of them is trained on, at most.
            shadow_epochs: epochs of every shadow.
            conf: LiRA's confidence; `max` follows the code.
            ordered_quarters: cut tMIA's data in the order of the clients, as the code does, instead of shuffled.
            teacher_mode: mode of the distilled network; `train` follows the code.
            student_epochs: epochs of tMIA's distillation.
            attack_epochs: epochs of tMIA's attack network.
        """
        self._attacks = chosen_attacks(attacks, self.possible, self.name)
        counts = {"shadows": shadows, "shadow_size": shadow_size, "shadow_epochs": shadow_epochs}
        counts |= {"student_epochs": student_epochs, "attack_epochs": attack_epochs}
        choices = [*choice_problem(self.name, "conf", conf, Confidence)]
        choices += choice_problem(self.name, "teacher_mode", teacher_mode, TeacherMode)
        raise_all([*option_problems(self.name, counts, {}), *choices])
        self._settings = TaxonomySettings(
            *(shadows, shadow_size, shadow_epochs, conf, ordered_quarters),
            *(teacher_mode, student_epochs, attack_epochs),
        )

    def findings(self, world: World) -> Iterator[Finding]:
        """The attacks on all last uploads; the last result also has the means over the attacks."""
        bench, told = Bench(world, self._settings), {}
        choice = Choice("uploads", world.public.rounds, all_rounds=False)
        for name in self._attacks:
            conditions = Conditions(
                name, choice.name(world), self.name, choice.adversary(world), THREATS[name], self._shadows(name)
            )
            finding = guarded(conditions, partial(self._attacked, bench, choice, conditions))
            told[name] = finding.figures
            if name == self._attacks[-1]:
                finding = replace(finding, figures=(*finding.figures, *mean_figures(told)))
            yield finding

    def sets(self, world: World, client: int) -> LabelledSets:
        """The first samples of client and test set, at most 5000 of each, and known ones drawn from all of them."""
        members, test, seed = world.truth.members[client], world.truth.test, world.public.seed
        known, count = known_count(len(members)), min(len(members), len(test), MOST_EVALUATED)
        fronts = legacy_order(members, seed)[:known], legacy_order(test, seed)[:known]
        return LabelledSets(*fronts, members[:count], test[:count])

    def _attacked(self, bench: Bench, choice: Choice, conditions: Conditions) -> Finding:
        rows: dict[int, MembershipScores] = {}
        decisions: dict[int, Decision] = {}
        missing, bench.notes = [], [*_remarks(bench.world), *self._notes(conditions.attack)]
        for client, model in seen_models(bench.world, choice, ()).items():
            if isinstance(model, NotAvailable):
                missing.append(model.reason)
                continue
            sets = self.sets(bench.world, client)
            scored = ATTACKS[conditions.attack](bench, model, sets)
            truth = np.arange(len(scored.known)) < len(sets.known_members)
            unit = evaluated_rows(scored.evaluated, sets, client)
            decisions[client] = decide(unit, grid_threshold(scored.known, truth), "knowledge")
            rows[client] = evaluated_rows(scored.ranks, sets, client)
        found, judged = list(rows.values()), list(decisions.values())
        return concluded(bench.world, conditions, found, judged, _figures(rows, decisions), bench.notes, missing)

    def _shadows(self, attack: str) -> str:
        return {"yeom": "none", "lira": f"{self._settings.shadows} central", "tmia": "1 central"}[attack]

    def _notes(self, attack: str) -> list[str]:
        if attack == "yeom":
            return ["losses of known and of evaluated samples are scaled apart, so the threshold does not carry over"]
        notes = ["shadows have the server's width and are trained on the other clients' members, whatever the target"]
        if attack == "lira":
            largest = "LiRA reads the largest probability, as the code does, not that of the true class"
            right = "LiRA reads the probability of the true class, as the paper says; its code takes the largest"
            return [*notes, largest if self._settings.conf == "max" else right]
        if self._settings.ordered_quarters:
            return [*notes, "tMIA's shadow members and non-members come from different clients, as in the code"]
        return notes


def mean_figures(told: Mapping[str, Sequence[Figure]]) -> list[Figure]:
    """Mean over the attacks of every figure, client by client, then over clients; none with fewer than 2 attacks."""
    having = {name: figures for name, figures in told.items() if figures}
    if len(having) < 2:
        return []
    found = []
    for same in zip(*having.values(), strict=True):
        values = [dict(figure.per_client) for figure in same]
        means = {client: float(np.mean([value[client] for value in values])) for client in values[0]}
        found.append(client_figure(f"mean {same[0].name} of {', '.join(having)}", means))
    return found


def _figures(rows: dict[int, MembershipScores], decisions: dict[int, Decision]) -> list[Figure]:
    if not rows:
        return []
    return [
        client_figure("AUC %", {client: 100 * roc_curve(own).auc for client, own in rows.items()}),
        client_figure("Adv %", {client: 100 * own.advantage for client, own in decisions.items()}),
        client_figure("TPR % at 0.1 % FPR", {client: 100 * nearest_tpr(own, LOW_FPR) for client, own in rows.items()}),
    ]


def _remarks(world: World) -> list[str]:
    notes = ["the attacker is given labelled members of the target, and they are among the evaluated", OFFICIAL_TEST]
    notes.append("TPR is taken at the nearest point of the curve, whose FPR may lie above 0.1 %")
    if evaluates_by_batch(world.public.prototype):
        notes.append("members and non-members are asked for apart: the statistics of each batch tell which is which")
    return notes

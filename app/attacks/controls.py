"""Controls: an attack must succeed on a model that memorised a toy dataset, and fail on an untrained model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.optim import SGD

from app.attacks.adaptive.base import ObservedModel
from app.attacks.context import AttackContext, ShadowSource, Uploads
from app.attacks.membership.base import MembershipAttack
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Ids, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, initial_vector, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.attacks.verdicts import read_verdict, verdict_key, write_verdict
from app.common.errors import UserError
from app.common.progress import Step
from app.common.seeding import derive_key, numpy_generator
from app.federation.local_training import LocalTraining
from app.metrics.membership import NO_CLIENT, MembershipScores
from app.metrics.roc import roc_curve, tpr_at_fpr
from app.models.mlp import MLP
from datamodules.store import ImageStore

AUDITED, AUXILIARY, POPULATION = 424, 400, 1000
"""Samples by use. Half of the audited ones are members: 212, the size that `shared_size` gives shadows of such a model,
so that all of them train with batches of one length."""
CLASSES, PIXELS = 10, (12, 12)
TWINS = AUDITED + AUXILIARY + POPULATION
ROUNDS = (1, 2, 3)
"""Rounds whose models the toy's adversary has observed."""
TWIN_CLIENT = 0
"""Client of the toy whose audited samples are the members and their twins."""


@dataclass(frozen=True, eq=False)
class Toy:
    """A dataset with random labels, a model that fits its 212 members perfectly, and one with random values.

    There are as many non-members from the same source.
    """

    knowledge: PublicKnowledge
    memorised: AttackedModel
    untrained: AttackedModel
    members: Ids
    nonmembers: Ids

    @property
    def samples(self) -> Ids:
        return np.arange(AUDITED)

    @property
    def twins(self) -> Ids:
        """Ids of copies of the members with wrong labels, which no model is trained on, in the order of the members."""
        return TWINS + np.arange(len(self.members))

    @property
    def audited(self) -> Mapping[int, Ids]:
        """Samples of the two tests: members and non-members, and members and their twins, as if of another client."""
        return {NO_CLIENT: self.samples, TWIN_CLIENT: np.concatenate([self.members, self.twins])}


def make_toy(seed: int = 0) -> Toy:
    """Draw the data and train the model, which takes about a quarter of a second."""
    members = np.sort(numpy_generator(seed, "toy-members").permutation(AUDITED)[: AUDITED // 2])
    knowledge = _toy_knowledge(seed, members)
    nonmembers = np.setdiff1d(np.arange(AUDITED), members)
    job = ShadowJob(0, 1.0, members, derive_key(seed, "toy-target"))
    (snapshots,) = train_centrally(knowledge, [job], ROUNDS, workers=1)
    empty = initial_vector(knowledge, 1.0, derive_key(seed, "toy-untrained"))
    untrained = tuple(Snapshot(round_, 1.0, empty) for round_ in ROUNDS)
    return Toy(
        knowledge=knowledge,
        memorised=AttackedModel(f"toy-memorised-{seed}", NO_CLIENT, len(members), snapshots),
        untrained=AttackedModel(f"toy-untrained-{seed}", NO_CLIENT, len(members), untrained),
        members=members,
        nonmembers=nonmembers,
    )


def _toy_knowledge(seed: int, members: Ids) -> PublicKnowledge:
    generator = numpy_generator(seed, "toy-data")
    images = torch.from_numpy(generator.normal(size=(TWINS, *PIXELS, 1))).float()
    labels = torch.from_numpy(generator.integers(0, CLASSES, TWINS))
    wrong = (labels[members] + torch.from_numpy(generator.integers(1, CLASSES, len(members)))) % CLASSES
    images, labels = torch.cat([images, images[members]]), torch.cat([labels, wrong])
    store = ImageStore(images, labels, torch.zeros(1), torch.ones(1), CLASSES)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_key(seed, "toy-network"))
        net = MLP(store.shape, hidden=(64,))
    return PublicKnowledge(
        prototype=net,
        store=store,
        local=LocalTraining(epochs=6, batch_size=53, optimizer=partial(SGD, lr=0.1, momentum=0.9)),
        learning_rates=(0.1,) * ROUNDS[-1],
        auxiliary=np.arange(AUDITED, AUDITED + AUXILIARY),
        population=np.arange(AUDITED + AUXILIARY, TWINS),
        seed=seed,
    )


def toy_uploads(model: AttackedModel, source: ShadowSource) -> Uploads:
    """Uploads as if the model belonged to one client and every shadow to another, which have none of its samples.

    What a client was sent in a round is its own model of the round before.
    """
    shadows = source.shadows(model, "out").shadows
    clients = {model.client: model, **{number: shadow.model for number, shadow in enumerate(shadows, start=1)}}
    return {client: dict(_observed(own)) for client, own in clients.items()}


def _observed(model: AttackedModel) -> Iterator[tuple[int, ObservedModel]]:
    for earlier, later in pairwise(model.snapshots):
        index = torch.arange(later.vector.numel())
        everything = torch.ones_like(index, dtype=torch.bool)
        seen = (index, earlier.vector, later.vector, everything)
        yield later.round, ObservedModel(later.round, later.rate, *seen, trainable=len(index))


MEMORISED = 0.9
"""Smallest area under the ROC curve that an attack must reach on a model that has memorised its members."""

RARE = 5.0
"""Largest distance of the AUC from 1/2 in checks that are repeated in every run, in standard deviations: exceeded by
chance once in two million."""

MOST_ROWS = 2000
"""Most members, and most non-members, in the blind baseline."""


def chance_deviation(members: int, nonmembers: int) -> float:
    """Standard deviation of the AUC of random scores (Mann-Whitney)."""
    return math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers))


class AttackControls:
    """Tests attacks on the toy; shared by all attacks, so that its shadows are trained once."""

    def __init__(self, shadows: int = 5, seed: int = 0) -> None:
        self._shadows, self._seed = shadows, seed
        self._known: dict[str | MembershipAttack, list[str]] = {}  # by key, or by attack where it has none
        self._cache: Path | None = None  # of the first attack that is judged

    @cached_property
    def toy(self) -> Toy:
        return make_toy(self._seed)

    @cached_property
    def _query(self) -> ModelQuery:
        return ModelQuery(self.toy.knowledge)

    @cached_property
    def _source(self) -> CentralShadows:
        return CentralShadows(self.toy.knowledge, self.toy.audited, self._shadows, self._cache)

    def failures(self, attack: MembershipAttack, folder: Path | None = None) -> list[str]:
        """Failed controls of an attack, in sentences. Judged once per class, arguments and version.

        Args:
            attack: to test.
            folder: where verdicts and the toy's shadows are kept for other runs, None to keep none.
        """
        key = verdict_key(attack, self._shadows, self._seed)
        known = self._known.get(key or attack)
        if known is None and key is not None:
            known = read_verdict(folder, key)
        if known is None:
            known = self._judged(attack, folder)
            if key is not None:
                write_verdict(folder, key, known)
        self._known[key or attack] = known
        return known

    def _judged(self, attack: MembershipAttack, folder: Path | None) -> list[str]:
        self._cache = folder
        try:
            with Step(f"controls of {attack.name}", delay=0):
                return list(self._tested(attack))
        except UserError as error:
            return [f"the attack refuses the toy: {error.problems[0].cause}"]

    def _tested(self, attack: MembershipAttack) -> Iterator[str]:
        toy, lowest = self.toy, f"at least {MEMORISED}"
        area = self._area(attack, toy.memorised)
        if area < MEMORISED:
            yield f"it does not recognise members that a model has memorised (AUC {area:.3f}, {lowest})"
        area = self._area(attack, toy.untrained)
        bound = 3 * chance_deviation(len(toy.members), len(toy.nonmembers))
        if abs(area - 0.5) > bound:
            yield f"it finds members of a model that was never trained (AUC {area:.3f}, expected 0.5 ± {bound:.3f})"
        if not attack.uses_labels:
            return
        area = self._area(attack, replace(toy.memorised, client=TWIN_CLIENT))
        if area < MEMORISED:
            yield f"it classifies members with a wrong label as members (AUC {area:.3f}, {lowest})"

    def _area(self, attack: MembershipAttack, model: AttackedModel) -> float:
        toy, samples = self.toy, self.toy.audited[model.client]
        uploads = partial(toy_uploads, model, self._source)
        context = AttackContext(toy.knowledge, self._query, self._source, model, self._cache, uploads)
        scores = attack.scores(model, samples, context)
        return roc_curve(MembershipScores.of(scores, np.isin(samples, toy.members), samples)).auc


@cache
def attack_controls() -> AttackControls:
    """The controls of this process."""
    return AttackControls()


def metric_failures(scores: MembershipScores, seed: int) -> list[str]:
    """Checks on the rows of a result: with permuted membership, and with equal scores, the AUC must be 1/2."""
    failures = []
    shuffled = numpy_generator(seed, "permuted-membership").permutation(scores.members)
    permuted = roc_curve(MembershipScores(scores.scores, shuffled, scores.samples, np.zeros_like(scores.clients))).auc
    bound = RARE * chance_deviation(scores.member_count, scores.nonmember_count)
    if abs(permuted - 0.5) > bound:
        failures.append(f"permuted membership is found (AUC {permuted:.3f}, expected 0.5 ± {bound:.3f})")
    flat = roc_curve(MembershipScores.of(np.zeros(scores.scores.size), scores.members))
    if flat.auc != 0.5 or getattr(tpr_at_fpr(flat, 0.0), "tpr", 0.0) != 0:
        failures.append(f"equal scores distinguish members (AUC {flat.auc:.3f})")
    return failures


def blind_scores(store: ImageStore, members: Ids, nonmembers: Ids, seed: int) -> MembershipScores | None:
    """Cross-validated scores of a classifier that sees images and labels but no model (Das et al. 2024).

    None with fewer than 20 members or non-members. The seed draws the folds, and samples where there are too many.
    """
    generator = numpy_generator(seed, "blind-baseline")
    chosen = [generator.permutation(side)[:MOST_ROWS] for side in (members, nonmembers)]
    if min(map(len, chosen)) < 20:
        return None
    samples = np.concatenate(chosen)
    truth = np.arange(len(samples)) < len(chosen[0])
    images, labels = store.batch(torch.from_numpy(samples))
    pixels = images.flatten(1).double().cpu().numpy()
    classes = np.eye(store.classes)[labels.cpu().numpy()]
    parts = min(20, pixels.shape[1], len(samples) // 5)
    reduced = PCA(parts, random_state=0).fit_transform(pixels)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, class_weight="balanced"))
    folds = StratifiedKFold(5, shuffle=True, random_state=int(generator.integers(2**31)))
    features = np.hstack([reduced, classes])
    scores = cross_val_predict(model, features, truth, cv=folds, method="decision_function")
    return MembershipScores.of(scores, truth, samples)


def blind_failures(store: ImageStore, members: Ids, nonmembers: Ids, seed: int) -> list[str]:
    """A failure where members and non-members differ without any model: then no attack shows leakage."""
    scores = blind_scores(store, members, nonmembers, seed)
    if scores is None:
        return []
    area, bound = roc_curve(scores).auc, RARE * chance_deviation(scores.member_count, scores.nonmember_count)
    if area - 0.5 <= bound:
        return []
    return [
        f"members and non-members can be distinguished without the model (AUC {area:.3f} from images and labels alone, "
        f"expected at most {0.5 + bound:.3f}): they do not come from one distribution"
    ]

"""Keeps features of members and non-members in the released model and in its attack, for t-SNE figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import Trainer

from app.attacks.audit_context import AuditContext
from app.attacks.model_query import last_linear
from app.attacks.models import Ids
from app.attacks.targets import released_model
from app.common.errors import Problem, UserError
from app.common.ranges import AtLeastTen
from app.common.seeding import numpy_generator
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.result import Result
from app.results.attacks.membership import AttackRecord
from app.results.attacks.representation_files import AttackRepresentations, RepresentedSamples
from callbacks.attacks.membership_inference import public_knowledge
from datamodules.split import Membership


class Representations(FederatedCallback):
    """Runs audited samples through the released model and keeps the inputs of its last linear layer.

    Non-members are the samples that clients hold out, or the common test set where they hold out none, as in the
    papers' protocols. Where the same run trains an attack network on the released model (protocol `memdefense`), what
    that network's last layer reads of evaluated samples is kept, too. Comparison reports draw the t-SNE of both
    (MemDefense's Figure 3: with a defense, members should no longer lie apart).

    Example::

        rampart fit --attacks.features Representations --attacks.features.samples 300

    Args:
        samples: most members, and most non-members, 10 or more.
    """

    kind = "recorder"
    vectorisable = True

    def __init__(self, samples: AtLeastTen = 300) -> None:
        self.samples = samples
        self._attacked: AttackRecord | None = None

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        try:
            last_linear(federation.net)
        except UserError as error:
            cause, consequence = error.problems[0].cause, "there is no input of a last linear layer to keep"
            yield Problem(cause, consequence, f"leave out --attacks.{self.given_name}, or end the network in one")
        if not len(_nonmembers(federation.data.membership)):
            yield Problem(
                "no samples are held out and there is no test set, so there are no non-members",
                "representations of members would have nothing to be compared with",
                "set --data.holdout.clients 0.5, say",
            )

    def on_result(self, trainer: Trainer, federation: FederatedModule, result: Result) -> None:
        """Remember the attack network on the released model; those on clients' uploads have features of their own."""
        if isinstance(result, AttackRecord) and result.hidden is not None and result.conditions.read_target == "global":
            self._attacked = result

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[RepresentedSamples]:
        rounds = federation.trainer.current_epoch
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        yield represent(audit, self.samples)
        if self._attacked is not None:
            yield _in_attack(self._attacked, audit, self.samples)


def represent(audit: AuditContext, samples: int) -> RepresentedSamples:
    """Penultimate-layer features of the released model for at most so many members and non-members of all clients."""
    model = released_model(audit.transcript.external_view(), audit.knowledge, "representations")
    sets = (np.concatenate(audit.truth.members), _nonmembers(audit.truth))
    drawn = [_drawn(own, samples, audit.knowledge.seed, number) for number, own in enumerate(sets)]
    ids = np.concatenate(drawn)
    seen = audit.query.activations(model, ids)
    return RepresentedSamples(
        features=seen.inputs.astype(np.float32),
        labels=seen.responses.labels.astype(np.int64),
        members=np.arange(ids.size) < drawn[0].size,
        samples=ids,
    )


def _in_attack(attacked: AttackRecord, audit: AuditContext, samples: int) -> AttackRepresentations:
    """Features of the attack network for at most so many of its evaluated members and non-members."""
    assert attacked.hidden is not None
    rows = attacked.scores
    sides = (rows.samples[rows.members], rows.samples[~rows.members])
    drawn = [_drawn(own, samples, audit.knowledge.seed, number) for number, own in enumerate(sides)]
    chosen = np.flatnonzero(np.isin(rows.samples, np.concatenate(drawn)))
    ids, store = rows.samples[chosen], audit.knowledge.store
    return AttackRepresentations(
        features=attacked.hidden[chosen],
        labels=store.labels[torch.from_numpy(ids).to(store.device)].cpu().numpy(),
        members=rows.members[chosen],
        samples=ids,
    )


def _nonmembers(sets: Membership) -> Ids:
    """Non-members of all clients together."""
    return np.unique(np.concatenate([sets.outsiders(client) for client in range(len(sets.members))]))


def _drawn(ids: Ids, most: int, seed: int, number: int) -> Ids:
    """At most so many of the ids, drawn without regard to the client, ascending."""
    distinct = np.unique(ids)
    rng = numpy_generator(seed, "representations", number)
    return np.sort(rng.choice(distinct, min(most, distinct.size), replace=False))

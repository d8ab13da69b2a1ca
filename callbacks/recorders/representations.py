"""Keeps the released model's penultimate-layer features of members and non-members, for t-SNE figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.attacks.audit_context import AuditContext
from app.attacks.model_query import last_linear
from app.attacks.models import Ids
from app.attacks.targets import released_model
from app.errors import Problem, UserError
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.attacks.representation_files import RepresentedSamples
from app.seeding import numpy_generator
from callbacks.attacks.membership_inference import public_knowledge


class Representations(FederatedCallback):
    """Runs audited samples through the released model and keeps the inputs of its last linear layer.

    Comparison reports draw their t-SNE (MemDefense's Figure 3: with a defense, members should no longer lie apart).

    Example::

        rampart fit --attacks.features Representations --attacks.features.samples 300

    Args:
        samples: most members, and most non-members, 10 or more.
    """

    kind = "recorder"
    vectorisable = True

    def __init__(self, samples: int = 300) -> None:
        if samples < 10:
            cause = f"representations of {samples} members are to be kept"
            raise UserError.of(cause, "so few points show no clusters", "set samples to 10 or more")
        self.samples = samples

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        try:
            last_linear(federation.net)
        except UserError as error:
            cause, consequence = error.problems[0].cause, "there is no input of a last linear layer to keep"
            yield Problem(cause, consequence, f"leave out --attacks.{self.given_name}, or end the network in one")
        if not any(map(len, federation.data.membership.nonmembers)):
            yield Problem(
                "no samples are held out, so there are no non-members",
                "representations of members would have nothing to be compared with",
                "set --data.holdout.clients 0.5, say",
            )

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[RepresentedSamples]:
        rounds = federation.trainer.current_epoch
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        yield represent(audit, self.samples)


def represent(audit: AuditContext, samples: int) -> RepresentedSamples:
    """Penultimate-layer features of the released model for at most so many members and non-members of all clients."""
    model = released_model(audit.transcript.external_view(), audit.knowledge, "representations")
    sets = (audit.truth.members, audit.truth.nonmembers)
    drawn = [_drawn(np.concatenate(own), samples, audit.knowledge.seed, number) for number, own in enumerate(sets)]
    ids = np.concatenate(drawn)
    seen = audit.query.activations(model, ids)
    return RepresentedSamples(
        features=seen.inputs.astype(np.float32),
        labels=seen.responses.labels.astype(np.int64),
        members=np.arange(ids.size) < drawn[0].size,
        samples=ids,
    )


def _drawn(ids: Ids, most: int, seed: int, number: int) -> Ids:
    """At most so many of the ids, drawn without regard to the client, ascending."""
    distinct = np.unique(ids)
    rng = numpy_generator(seed, "representations", number)
    return np.sort(rng.choice(distinct, min(most, distinct.size), replace=False))

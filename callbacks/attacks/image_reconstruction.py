"""Reconstructs training images from the transcript, when training is over."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from app.attacks.audit_context import AuditContext
from app.attacks.reconstruction.catalogue import make_passive
from app.attacks.reconstruction.inversion.released_model import ModelInversion
from app.attacks.reconstruction.inversion.uploads import PassiveAttack, UploadInversion
from app.common.errors import Problem, raise_all
from app.common.progress import track
from app.common.ranges import Whole
from app.federation.hooks import FederatedCallback, federated_callbacks, overriding
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.attacks.reconstruction import ReconstructionRecord
from callbacks.attacks.membership_inference import choice_problems, public_knowledge


class ImageReconstruction(FederatedCallback):
    """Reconstructs training images from uploads and from the released model, without deviating from the protocol.

    The adversary is an honest-but-curious server (gradient inversion) or anybody with the released model (model
    inversion). Runs when training is over, or later from the transcript.

    Example::

        rampart fit --attacks.images ImageReconstruction --attacks.images.attacks "[gradient-inversion]"
        rampart attack RUN --attacks gradient-inversion,mi-face

    Args:
        attacks: names (`rampart list attacks` shows them), dotted classes of yours, or class_path with init_args;
            without any, gradient inversion and MI-Face.
        colluding: participants, drawn at random, that join the server with their data, models and secrets.
    """

    kind = "attack"
    vectorisable = True

    def __init__(self, attacks: list[str | PassiveAttack] | None = None, colluding: Whole = 0) -> None:
        self.joined_by = colluding
        raise_all(choice_problems({"attacks": attacks}))
        self.attacks = [make_passive(attack) for attack in (attacks or ("gradient-inversion", "mi-face"))]

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        for attack in self.attacks:
            yield from attack.problems()
        yield from self._deceived(federation)

    def _deceived(self, federation: FederatedModule) -> Iterator[Problem]:
        """The transcript does not hold what a malicious server sent, so changes of clients cannot be computed."""
        deviating = overriding(federated_callbacks(federation.trainer), "on_broadcast")
        if deviating and any(map(_reads_uploads, self.attacks)):
            yield Problem(
                f"uploads are to be attacked in a run with {type(deviating[0]).__name__}",
                "clients did not get the models that the transcript holds, so their changes cannot be computed",
                "attack uploads in a run whose server keeps to the protocol",
            )

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[ReconstructionRecord]:
        raise_all(self._deceived(federation))
        rounds = federation.trainer.current_epoch
        alone = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        audit = alone.joined_by(self.joined_by)
        for attack in track(self.attacks, "reconstruction", "attacks", name=attrgetter("name")):
            for finding in attack.findings(audit):
                yield ReconstructionRecord.of(finding)


def _reads_uploads(attack: PassiveAttack) -> bool:
    return isinstance(attack, UploadInversion) or (isinstance(attack, ModelInversion) and attack.target == "uploads")

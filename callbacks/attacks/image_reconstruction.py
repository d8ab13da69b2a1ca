"""Brings training images back from what was recorded, when the training is over."""

from __future__ import annotations

from collections.abc import Iterator

from tqdm import tqdm

from app.attacks.audit_context import AuditContext
from app.attacks.reconstruction.base import ReconstructionFinding
from app.attacks.reconstruction.catalogue import make_passive
from app.attacks.reconstruction.inversion.released_model import ModelInversion
from app.attacks.reconstruction.inversion.uploads import PassiveAttack, UploadInversion
from app.errors import Problem, raise_all
from app.federation.hooks import FederatedCallback, federated_callbacks, overriding
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.attacks.reconstruction_results import ReconstructionResults
from callbacks.attacks.membership_inference import public_knowledge


class ImageReconstruction(FederatedCallback):
    """Reads training images from uploads and from the released model, without deviating from the protocol.

    Runs when training is over; `rampart attack` runs it later, from the transcript.
    """

    kind = "observer"
    vectorisable = True

    def __init__(self, attacks: list[str | PassiveAttack] | None = None) -> None:
        """Set up the attacks.

        Args:
            attacks: names (`rampart list attacks` shows them), dotted classes of yours, or class_path with init_args;
                without any, gradient inversion and MI-Face.
        """
        self.attacks = [make_passive(attack) for attack in (attacks or ("gradient-inversion", "mi-face"))]
        self.results: ReconstructionResults | None = None

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        """Of the attacks."""
        for attack in self.attacks:
            yield from attack.problems()
        yield from self._deceived(federation)

    def _deceived(self, federation: FederatedModule) -> Iterator[Problem]:
        """Uploads answer what clients were sent; where a server sent something else, the transcript does not tell."""
        lying = overriding(federated_callbacks(federation.trainer), "on_broadcast")
        if lying and any(map(_reads_uploads, self.attacks)):
            yield Problem(
                f"uploads are to be attacked in a run with {type(lying[0]).__name__}",
                "clients did not get the models that the transcript holds, so their changes cannot be told",
                "attack uploads in a run whose server keeps to the protocol",
            )

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> None:
        """Attack the finished run."""
        self.run(federation, transcript, federation.trainer.current_epoch)

    def run(self, federation: FederatedModule, transcript: Transcript, rounds: int) -> list[ReconstructionFinding]:
        """Attack what was seen; results are kept as soon as they are there.

        Args:
            federation: whose network, plan and data are attacked.
            transcript: what adversaries saw.
            rounds: rounds trained.
        """
        raise_all(self._deceived(federation))
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        found = []
        with tqdm(desc="reconstruction", unit=" results", leave=False, disable=None) as bar:
            for attack in self.attacks:
                for finding in attack.findings(audit):
                    found.append(finding)
                    bar.update()
                    if self.results is not None:
                        self.results.add(finding)
        if self.results is not None:
            self.results.conclude(found)
        return found


def _reads_uploads(attack: PassiveAttack) -> bool:
    return isinstance(attack, UploadInversion) or (isinstance(attack, ModelInversion) and attack.target == "uploads")

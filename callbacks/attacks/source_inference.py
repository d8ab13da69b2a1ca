"""Asks which client owns a member, when training is over."""

from __future__ import annotations

from collections.abc import Iterator

from app.attacks.audit_context import AuditContext
from app.attacks.source_inference import infer_sources
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.attacks.source_inference import SourceRecord
from callbacks.attacks.membership_inference import public_knowledge


class SourceInference(FederatedCallback):
    """Names the client that owns a member: the one whose uploads have the lowest loss on it (Hu et al. 2021).

    The adversary is an honest-but-curious server that sees uploads, and knows that the sample is a member. Beside the
    raw loss stands one that is comparable between widths. Runs when training is over, or later from the transcript.

    Example::

        rampart fit --config heterofl --attacks.sources SourceInference
        rampart attack RUN --attacks source-inference
    """

    kind = "attack"
    vectorisable = True

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[SourceRecord]:
        knowledge = public_knowledge(federation, federation.trainer.current_epoch)
        yield SourceRecord.of(infer_sources(AuditContext(knowledge, transcript, federation.data.membership)))

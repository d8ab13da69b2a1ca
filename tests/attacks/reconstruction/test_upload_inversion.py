"""Model inversion of what one client sent: its own classes, as it was sent and with a guess of what it hides."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federation_under_attack import audit_of, trained
from hidden_choice_kit import Blobs, factorised

from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.model_query import ModelQuery
from app.attacks.reconstruction.inversion.released_model import DeepInversionAttack, ModelInversion, inverted_models
from app.common.errors import UserError
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.models import CNN, MLP, DataShape
from app.results.report.threats import ROLES, SHORT
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation
from datamodules import Holdout, RawData

SIZES = (40, 60)
NET = partial(MLP, hidden=(16,))
SHAPE = DataShape(1, 8, 8, 4)


class OwnClasses(Blobs):
    """Client 0 has the classes 0 and 1, client 1 the classes 2 and 3."""

    def __init__(self):
        super().__init__(SIZES, SHAPE)
        self.holdout = Holdout(0.2, 0.0, 0.0)

    def load(self):
        """The same patterns, with labels by client."""
        generator, raw = np.random.default_rng(3), super().load()
        patterns = generator.uniform(0, 1, (4, 8, 8, 1))
        labels = np.concatenate([np.arange(40) % 2, 2 + np.arange(60) % 2])
        images = (patterns[labels] + generator.normal(0, 0.05, (100, 8, 8, 1))).clip(0, 1)
        pixels = torch.from_numpy(images).float()
        return RawData(
            pixels, torch.from_numpy(labels), raw.test_images, raw.test_labels, raw.class_names, (0.5,), (0.5,)
        )


def audit_with(folder, lr=0.2, net=NET, epochs=10, **settings):
    """A federation of those two clients under attack."""
    return audit_of(*trained(folder, 1, lr=lr, epochs=epochs, data=OwnClasses(), net=net, keep=(1, []), **settings))


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients that know their classes."""
    return audit_with(tmp_path_factory.mktemp("memorised"))


def likeness(finding):
    """Mean correlation with the means of the client's classes."""
    return finding.result.oracle.pearson_mean


def test_an_upload_gives_its_clients_classes(memorised, tmp_path):
    """Like the means of the client's own classes, where an untrained network shows nothing."""
    attack = ModelInversion(steps=60, target="uploads", client=0)
    (found,) = attack.findings(memorised)
    (untrained,) = attack.findings(audit_with(tmp_path, lr=0.0))
    assert likeness(found) > likeness(untrained) + 0.3
    assert found.pairs.truth.labels.tolist() == [0, 1]
    conditions = found.conditions
    assert (conditions.label, conditions.clients) == ("mi-face-client-0", (0,))
    assert (conditions.adversary, conditions.sees, conditions.round) == ("curious server", "one upload", 1)
    members = memorised.truth.members[0]
    pixels = memorised.knowledge.store.images[torch.from_numpy(members)].movedim(-1, 1).double()
    classes = memorised.knowledge.store.labels[torch.from_numpy(members)]
    for label, image in zip((0, 1), found.pairs.truth.images, strict=True):
        assert torch.allclose(image.double(), pixels[classes == label].mean(dim=0), atol=1e-6)


def test_the_client_with_the_most_samples_is_attacked_first(memorised):
    """Unless another is named; the released model is what it was."""
    (usual,) = inverted_models(memorised, "mi-face", "uploads", None)
    assert usual.conditions.clients == (1,)
    assert usual.members.tolist() == sorted(memorised.truth.members[1].tolist())
    (released,) = inverted_models(memorised, "mi-face", "global", None)
    assert released.conditions.label == "mi-face"
    assert released.conditions.adversary == "anybody outside"
    assert torch.equal(released.model.vector, memorised.transcript.external_view().released())
    (upload,) = inverted_models(memorised, "mi-face", "uploads", 1)
    assert torch.equal(upload.model.vector, memorised.transcript.server_view().uploads(1)[1].payload)


def test_a_hidden_choice_is_read_twice(tmp_path):
    """As sent, and with the factors that the server takes for used."""
    audit = audit_with(tmp_path, net=factorised(speed=100.0), epochs=2)
    plain, guessed = ModelInversion(steps=2, target="uploads").findings(audit)
    assert [one.conditions.label for one in (plain, guessed)] == ["mi-face-client-1", "mi-face-client-1-recovered"]
    assert FactorChoice.what in guessed.conditions.notes
    assert FactorChoice.what not in plain.conditions.notes
    nets = [
        ModelQuery(audit.knowledge).network(one.model) for one in inverted_models(audit, "mi-face", "uploads", None)
    ]
    assert not torch.equal(*(next(iter(net.factor_layers().values())).gates() for net in nets))
    assert len(list(ModelInversion(steps=1).findings(audit))) == 1


def test_uploads_that_nobody_can_read(tmp_path, memorised):
    """Masked, or of a client that is not there: N/A with the reason, and no other result in its place."""
    masked = audit_with(tmp_path, epochs=1, callbacks=[SecureAggregation()])
    (found,) = ModelInversion(steps=1, target="uploads").findings(masked)
    assert "masked sums only" in found.result.reason
    assert (found.conditions.label, found.conditions.clients) == ("mi-face-uploads", ())
    (named,) = ModelInversion(steps=1, target="uploads", client=0).findings(masked)
    assert named.conditions.label == "mi-face-client-0"
    assert isinstance(named.result, NotAvailable)
    (absent,) = ModelInversion(steps=1, target="uploads", client=7).findings(memorised)
    assert absent.result.reason == "there is no client 7 in any round"


def test_uploads_that_a_key_holder_opens(memorised, tmp_path):
    """Encrypted uploads are attacked as plain ones, and the adversary is called by its name."""
    opened = audit_with(tmp_path, callbacks=[Paillier(simulate=True, key_length=1024, colluding=True)])
    attack = ModelInversion(steps=60, target="uploads", client=0)
    (found,), (plain,) = attack.findings(opened), attack.findings(memorised)
    assert found.conditions.adversary == "colluding server"
    assert likeness(found) == pytest.approx(likeness(plain), abs=0.01)
    assert ROLES[SHORT[found.conditions.adversary]].title == "Server helped by a key holder"


def test_deep_inversion_reads_uploads_too(memorised, tmp_path):
    """Where the network keeps statistics; else it says why not."""
    (refused,) = DeepInversionAttack(steps=1, target="uploads").findings(memorised)
    assert "no batch normalisation" in refused.result.reason
    audit = audit_with(tmp_path, net=partial(CNN, u=4, statistics="running"), epochs=1)
    (found,) = DeepInversionAttack(steps=2, target="uploads", client=0).findings(audit)
    assert found.conditions.label == "deep-inversion-client-0"
    assert not isinstance(found.result, NotAvailable)


def test_before_the_release_only_uploads_can_be_inverted(memorised):
    """An upload is there as soon as it is sent."""
    early = replace(memorised, final=False)
    (released,) = ModelInversion(steps=1).findings(early)
    assert "not been released" in released.result.reason


def test_a_client_without_uploads_is_a_mistake():
    """The released model is nobody's."""
    with pytest.raises(UserError, match="client 3 is to be attacked, but the target is the released model"):
        ModelInversion(client=3)
    with pytest.raises(UserError, match="no target 'server'"):
        DeepInversionAttack(target="server")


def test_a_lying_server_hides_what_uploads_answer(memorised, tmp_path):
    """Like other attacks on uploads, it is refused where clients got other models than the transcript holds."""

    class Lying(SecureAggregation):
        def on_broadcast(self, trainer, federation, client, vector):
            """Something else."""

    federation, _ = trained(tmp_path, 1, epochs=1, data=OwnClasses(), callbacks=[Lying()], keep=(1, []))
    refused = ImageReconstruction([ModelInversion(target="uploads")])
    assert len(list(refused._deceived(federation))) == 1
    assert not list(ImageReconstruction([ModelInversion()])._deceived(federation))
    with pytest.raises(UserError, match="Lying"):
        list(refused.on_transcript(federation, Transcript(tmp_path)))

"""Adversarial regularisation: the game, whose samples it reads, and what is kept of it."""

from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Recorder, make_trainer, run, small_federation, whole_batch
from regulariser_kit import HALVES, LOCAL, Losses, trained, with_reference
from torch.nn.functional import softmax

from app.common.errors import UserError
from app.common.seeding import torch_generator
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import FjORD
from app.models import CNN, MLP
from callbacks.defenses.adversarial_regularisation import AdversarialRegularisation
from datamodules import CropFlip
from datamodules.store import ImageStore

SMALL = partial(AdversarialRegularisation, width=0.05)


def defended(*callbacks, data=None, **settings):
    """Final vector of clients with reference sets."""
    return trained(*callbacks, data=data if data is not None else with_reference(), **settings)


# ---- the whole defense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_weight_zero_is_plain_training(executor):
    """Bit for bit in single precision; the attacker is not even made, so that no reference set is needed."""
    off = SMALL(weight=0.0)
    with_it, without = (
        defended(*callbacks, executor=executor, workers=2, precision="32-true") for callbacks in ([off], [])
    )
    assert torch.equal(with_it, without)
    assert off.traits() == frozenset()
    assert off.state_dict() == {"clients": {}}
    trained(SMALL(weight=0.0), rounds=1)


def test_only_attackers_learn_in_the_warmup():
    """The model is that of plain training until it ends; the attack networks have moved by then."""

    class Starts(FederatedCallback):
        kind = "recorder"

        def on_round_start(self, trainer, federation, plan):
            """The server's model at the start of every round."""
            self.models = [*getattr(self, "models", []), federation.theta.clone()]

    defense, watched, plain = SMALL(weight=50.0, warmup=2), Starts(), Starts()
    ends = defended(defense, watched, rounds=3), defended(plain, rounds=3)
    assert torch.equal(watched.models[2], plain.models[2])
    assert not torch.allclose(*ends, rtol=0, atol=1e-6)
    steps = [float(state["moments"][0]["step"]) for _, state in sorted(defense.state_dict()["clients"].items())]
    members = [len(own) for own in with_reference_sets().members]
    assert steps == [3 * 2 * -(-size // 4) for size in members], "one step for each of the client's batches"


def test_warmup_as_long_as_the_run_is_refused():
    """The clients would never train against their attackers."""
    with pytest.raises(UserError, match="warms up for 2 of 2 rounds"):
        defended(SMALL(warmup=2), rounds=2)


def with_reference_sets():
    """The sets of the clients at hand."""
    data = with_reference()
    data.setup()
    return data.membership


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        (TINY_MLP, {}),
        (TINY_MLP, {"method": FjORD([0.25, 0.5])}),
        (partial(CNN, u=4), {}),
        (partial(CNN, u=4, statistics="running"), {}),
        (partial(MLP, hidden=(6,), dropout=0.5), {}),
    ],
    ids=["heterofl", "fjord", "batch norm", "running statistics", "dropout"],
)
def test_every_width_is_regularised_whoever_trains_it(net, settings):
    """Threads give what the sequence gives, and every client's update differs from the undefended one."""
    recorders = [Recorder() for _ in range(3)]
    stacks = ([], [SMALL(warmup=0)], [SMALL(warmup=0)])
    for recorder, stack, executor in zip(recorders, stacks, ("sequence", "sequence", "threads"), strict=True):
        data = with_reference(shape=PICTURES)
        defended(*stack, recorder, data=data, net=net, executor=executor, workers=3, rounds=1, **settings)
    for plain, one, other in zip(*(recorder.updates for recorder in recorders), strict=True):
        assert not torch.allclose(plain[1], one[1], rtol=0, atol=1e-7)
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=1e-12)


def test_the_gain_joins_the_loss():
    """Weight times the mean log-probability that the attacker, after its step, gives to the batch being members."""

    class Gains(Losses):
        def client_loss(self, federation, client, batch, logits, loss):
            """As the attacker sees it now."""
            adversary, _ = defense._playing[client.client]
            odds = adversary.net(softmax(logits, 1), batch[1])
            self.seen.append((torch.sigmoid(odds).log().mean(), loss))
            return loss

    before, defense, after = Losses(), SMALL(weight=7.0, warmup=0), Gains()
    defended(before, defense, after)
    assert len(after.seen) > 10
    for (*_, plain), (gain, loss) in zip(before.seen, after.seen, strict=True):
        assert gain < -0.1
        torch.testing.assert_close(loss - plain, 7.0 * gain, rtol=0, atol=1e-12)


def test_everything_drawn_has_a_key(monkeypatch):
    """Attack networks begin by client, samples are drawn by round and client."""
    keys = []

    def spied(seed, *key):
        keys.append(key)
        return torch_generator(seed, *key)

    monkeypatch.setattr("callbacks.defenses.adversarial_regularisation.torch_generator", spied)
    defended(SMALL())
    places = [(round_, client) for round_ in (0, 1) for client in (0, 1, 2)]
    expected = [key for round_, client in places for key in (("adversary", round_, client), ("attacker", client))]
    assert sorted(keys, key=str) == sorted(expected, key=str)


def test_a_huge_weight_destroys_learning():
    """The labels' loss no longer matters beside it."""
    ends = {}
    for weight in (0.0, 1e4):
        federation = small_federation(TINY_MLP, local=whole_batch(1.0, epochs=10), capacities=[1.0, 0.5])
        run(federation, with_reference((40, 40), tests=60), 4, [SMALL(weight=weight, warmup=0, width=0.2)])
        ends[weight] = federation.report.server.accuracy
    assert ends[0.0] > 0.85
    assert ends[1e4] < 0.6


def test_batches_without_an_effect_on_the_model_itself():
    """Asking the model for the attacker leaves its mode and its running statistics alone."""

    class Modes(Losses):
        def client_loss(self, federation, client, batch, logits, loss):
            """All layers are in training, and carry these statistics."""
            modes = {layer.training for layer in client.net.modules()}
            buffers = [buffer.clone() for buffer in client.net.buffers()]
            self.seen.append((modes, buffers))
            return loss

    before, after = Modes(), Modes()
    net, data = partial(CNN, u=4, statistics="running"), with_reference(shape=PICTURES)
    defended(before, SMALL(attacker_steps=2, warmup=0), after, data=data, net=net, rounds=1)
    assert len(before.seen) > 10
    for (first, statistics), (second, same) in zip(before.seen, after.seen, strict=True):
        assert first == second == {True}
        assert len(same) > 0
        assert all(torch.equal(*pair) for pair in zip(statistics, same, strict=True))


# ---- whose samples ---------------------------------------------------------------------------------------------------


class Spy(FederatedCallback):
    """Writes down which samples are read during each client's local training."""

    def __init__(self, monkeypatch):
        self.read, self.who = {}, None
        batch = ImageStore.batch

        def spied(store, indices, dtype=torch.float32):
            self.read.setdefault(self.who, set()).update(indices.tolist())
            return batch(store, indices, dtype)

        monkeypatch.setattr(ImageStore, "batch", spied)

    def on_client_start(self, trainer, federation, client):
        """Training begins."""
        self.who = client.client

    def on_client_end(self, trainer, federation, client):
        """Training is over."""
        self.who = None


def test_only_own_samples_are_read(monkeypatch):
    """In its training a client sees its members and its own reference set, all of it in the long run, nothing else."""
    spy, sets = Spy(monkeypatch), with_reference_sets()
    defended(spy, SMALL(attacker_steps=2), rounds=4)
    for client in range(3):
        assert spy.read[client] == {*sets.members[client].tolist(), *sets.reference[client].tolist()}


def test_reference_samples_are_never_fitted(monkeypatch):
    """Batches of the local steps hold members only."""
    losses, data = Losses(), with_reference()
    defended(SMALL(), losses, data=data)
    images = data.store.batch(torch.from_numpy(data.membership.reference[0]), torch.float64)[0].flatten(1)
    fitted = torch.cat([batch[0] for batch, *_ in losses.seen]).flatten(1)
    assert torch.cdist(images, fitted).min() > 1e-6


class Asked(FederatedCallback):
    """Keeps what the model is asked in evaluation mode during one step."""

    def __init__(self):
        self.images = []

    def on_client_start(self, trainer, federation, client):
        """Listen."""
        self.handle = client.net.register_forward_pre_hook(self.keep)

    def keep(self, net, inputs):
        """Images of the attacker."""
        if not net.training:
            self.images.append(inputs[0])

    def on_client_end(self, trainer, federation, client):
        """Stop listening."""
        self.handle.remove()


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, {8, 6, 4}), ({"reference_batch": 2}, {4}), ({"reference_batch": 100}, {16, 20, 24})],
    ids=["as the batch", "two", "all there are"],
)
def test_size_of_the_attackers_batch(settings, sizes):
    """As many members as reference samples, as far as there are, once per step of the attacker."""
    asked, data = Asked(), with_reference((16, 20, 24), 0.25)
    defense, local = SMALL(attacker_steps=3, warmup=0, **settings), LocalTraining(1, batch_size=4)
    defended(asked, defense, data=data, rounds=1, local=local)
    steps = sum(-(-len(own) // 4) for own in data.membership.members)
    assert len(asked.images) == 3 * steps
    assert {len(images) for images in asked.images} == sizes


def test_reference_images_are_augmented_like_members():
    """Else the attacker would tell crops from whole images."""
    asked, data = Asked(), with_reference((16,), 0.25, augment=CropFlip(1, flip=False))
    defended(asked, SMALL(reference_batch=2, warmup=0), data=data, rounds=1, capacities=None)
    whole = data.store.batch(torch.arange(16), torch.float64)[0].flatten(1)
    distance = torch.cdist(torch.cat(asked.images).flatten(1), whole).amin(1).view(-1, 4)
    for part in (distance[:, :2], distance[:, 2:]):
        assert (part > 1e-6).double().mean() > 0.5


# ---- from round to round ---------------------------------------------------------------------------------------------


def test_an_interrupted_run_ends_on_the_same_bits(tmp_path):
    """The attack networks and the moments of their optimisers come back from the checkpoint."""
    settings = {"local": LOCAL, "capacities": HALVES, "participation": 0.7}
    whole = run(small_federation(TINY_MLP, **settings), with_reference(), 4, [SMALL()], precision="32-true")
    trainer = make_trainer(2, "32-true", [SMALL()])
    trainer.fit(small_federation(TINY_MLP, **settings), datamodule=with_reference())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = small_federation(TINY_MLP, **settings)
    make_trainer(4, "32-true", [SMALL()]).fit(
        resumed, datamodule=with_reference(), ckpt_path=tmp_path / "half.ckpt", weights_only=True
    )
    assert torch.equal(resumed.space.read(resumed.net), whole)


def test_attackers_live_on_from_round_to_round():
    """Each client has one of its own; a run that forgot them would end elsewhere."""

    class Forgetful(AdversarialRegularisation):
        def on_server_update(self, trainer, federation, aggregate):
            """Throw them away."""
            self._fresh = {}

    defense = SMALL(warmup=0)
    assert not torch.equal(defended(defense), defended(Forgetful(warmup=0, width=0.05)))
    first, second, _ = (state["net"]["head.0.weight"] for state in defense.state_dict()["clients"].values())
    assert not torch.equal(first, second)


def test_processes_share_their_attackers(monkeypatch):
    """What another process's client has learnt is taken over at the end of the round."""
    elsewhere = {7: {"net": {}, "moments": {}}}
    monkeypatch.setattr("callbacks.defenses.adversarial_regularisation.gather", lambda own: [own, elsewhere])
    defense = SMALL(warmup=0)
    defended(defense, rounds=1)
    assert sorted(defense.state_dict()["clients"]) == [0, 1, 2, 7]


def test_a_client_that_diverges_keeps_its_old_attacker():
    """Else it could never take part again."""

    class Explode(FederatedCallback):
        def on_client_start(self, trainer, federation, client):
            """In the second round."""
            if client.round == 1:
                next(client.net.parameters()).data.fill_(float("nan"))

    defense, once = SMALL(warmup=0), SMALL(warmup=0)
    with pytest.warns(UserWarning, match="diverged"):
        defended(Explode(), defense, rounds=2)
    defended(once, rounds=1)
    for client, state in once.state_dict()["clients"].items():
        kept = defense.state_dict()["clients"][client]
        assert all(torch.equal(kept["net"][name], value) for name, value in state["net"].items())
        assert all(torch.equal(kept["moments"][0][name], value) for name, value in state["moments"][0].items())


# ---- settings --------------------------------------------------------------------------------------------------------

WRONG = {
    "weight": -1.0,
    "warmup": -1,
    "attacker_steps": 0,
    "attacker_lr": 0.0,
    "reference_batch": 0,
    "width": float("nan"),
}


@pytest.mark.parametrize("option", WRONG)
def test_wrong_settings_are_refused(option):
    """With the option that corrects them."""
    with pytest.raises(UserError, match=f"{option} is .* \\(Adv(.|\n)*--defenses.NAME.{option}"):
        defended(AdversarialRegularisation(**{option: WRONG[option]}), rounds=1)


def test_all_mistakes_at_once():
    """Every setting; then the missing reference sets."""
    with pytest.raises(UserError) as error:
        trained(AdversarialRegularisation(**WRONG), rounds=1)
    assert len(error.value.problems) == 6
    with pytest.raises(UserError, match=r"--data.holdout.reference 0.1"):
        trained(AdversarialRegularisation(), rounds=1)


def test_a_client_without_reference_samples_is_named():
    """One of five samples at most."""
    with pytest.raises(UserError, match=r"client 1 \(it has 0\)"):
        defended(SMALL(), data=with_reference((40, 2, 40), 0.1), rounds=1)


def test_what_it_does_to_privacy():
    """Its attack network must not leave the client, which differential privacy has to know."""
    assert AdversarialRegularisation().traits() == {"trains-differently", "local-adversary"}

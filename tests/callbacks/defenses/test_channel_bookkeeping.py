"""What hidden channels count, refuse and forget, beyond the sums themselves."""

import pytest
import torch
from channel_kit import CHANNELS, ENCRYPTED, MASKED, MIXED, NET, SIMULATED, SIZES, Dying, over, trained
from federation_kit import Blobs, Recorder, Reports, initial, make_trainer, sgd, small_federation
from test_channel_faults import Tampering, swap_key

from app.common.errors import UserError
from app.crypto.messages import SERVER, Transport
from app.crypto.paillier.keys import generate
from app.federation.aggregation import QFFL
from app.federation.channels import paillier as paillier_channel
from app.federation.channels.paillier import PaillierChannel
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation


class Bending(FederatedCallback):
    """Changes chosen coordinates of chosen clients by as much as it is told."""

    def __init__(self, by, coordinates=slice(None), clients=None):
        self.by, self.coordinates, self.clients = (
            by,
            coordinates,
            set(range(len(SIZES)) if clients is None else clients),
        )

    def on_client_update(self, trainer, federation, update):
        """In place."""
        if update.client in self.clients:
            update.vector[self.coordinates] = update.received[self.coordinates] + self.by


@pytest.mark.parametrize("make", [ENCRYPTED, SIMULATED, MASKED])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_overflow(make, sign):
    """Everybody changes every coordinate by as much as the range holds, with weights by samples and 31 bits a value."""
    most = sign * 2.0 * (1 - 2.0**-29)
    settings = {"weighting": "samples", "capacities": [1.0]}
    plain = trained(Bending(most), **settings)
    assert (trained(Bending(most), make(bits=30), **settings) - plain).abs().max() < 2.0**-27


def test_the_layer_of_a_change_outside_the_range_is_that_of_the_server():
    """A narrow client's last coordinate is the classifier's, wherever it lies in the client's own vector."""
    narrow = MIXED.index(0.25)
    with pytest.raises(UserError, match=rf"1 parameters of client {narrow} .* in layers\.classifier\.bias"):
        trained(Bending(50.0, -1, [narrow]), SIMULATED())


@pytest.mark.parametrize("make", [Paillier, SecureAggregation])
@pytest.mark.parametrize("settings", [{"bits": 7}, {"bits": 33}, {"range": float("inf")}, {"range": float("nan")}])
def test_the_ends_of_what_precision_may_be(make, settings):
    """One bit beyond them, or no number."""
    with pytest.raises(UserError, match=rf"{next(iter(settings))} is \S+ \({make.__name__}\)"):
        trained(make(**settings), capacities=[1.0])


def test_a_round_given_up_counts_nobody():
    """So that no server momentum and no division by weights acts on it."""
    for defense in ([ENCRYPTED(), Tampering(swap_key)], [over(Dying((0, 1, 2, 3), "masked"), MASKED)]):
        recorder = Recorder()
        with pytest.warns(UserWarning, match="given up"):
            trained(*defense, recorder, server=lambda p: QFFL(p, q=1.0))
        [(mean, weight, updates)] = recorder.aggregates
        assert updates == 0
        assert weight.abs().max() == 0
        assert torch.equal(mean, initial(small_federation(net=NET, capacities=MIXED), Blobs(SIZES)))


class Listening(Transport):
    """Keeps the sessions it hears of."""

    def __init__(self):
        self.sessions = set()

    def carry(self, message):
        """Unchanged."""
        self.sessions.add(message.session)
        return message


@pytest.mark.parametrize("make", [ENCRYPTED, MASKED])
def test_every_round_of_every_run_has_a_session_of_its_own(make):
    """Or a message of another run's first round would pass for one of this one's."""
    transport = Listening()
    for _ in range(2):
        trained(over(transport, make), rounds=2)
    assert len(transport.sessions) == 4


@pytest.mark.parametrize(("body", "words"), [(bytes(256), "no ciphertext"), (bytes(5), "no whole number")])
def test_signed_nonsense_is_left_out(monkeypatch, body, words):
    """Client 5 signs what is no ciphertext: named, and the sum is that of the others."""
    genuine = PaillierChannel._sealed

    def sealed(self, client, dense):
        """A body of as many ciphertexts as the arrangement asks for, or of a wrong length."""
        if client != 5:
            return genuine(self, client, dense)
        mark, count = bytes.fromhex(self._public.fingerprint), len(dense) // self.packing.slots
        text = mark + (body * count if len(body) == 256 else body)
        return self._identities[client].sign(self._session, self._round, "ciphertext", SERVER, text)

    monkeypatch.setattr(PaillierChannel, "_sealed", sealed)
    recorder = Recorder()
    with pytest.warns(UserWarning, match=f"update of client 5 is left out: .*{words}"):
        trained(ENCRYPTED(), recorder)
    assert recorder.aggregates[0][2] == len(SIZES) - 1


def test_sums_that_are_no_ciphertexts_are_given_up(monkeypatch):
    """A key that is too small for them."""

    def refuse(*_):
        raise ValueError("the number at position 0 is no ciphertext")

    monkeypatch.setattr(paillier_channel, "decrypt", refuse)
    with pytest.warns(UserWarning, match=r"(\d+) of \1 encrypted sums are damaged"):
        trained(ENCRYPTED())


@pytest.mark.parametrize("make", [ENCRYPTED, SIMULATED])
def test_ciphertexts_are_counted(make):
    """Those of all clients, and those of the sum: a client of full width has as many."""
    defense, recorder = make(), Recorder()
    trained(defense, recorder)
    sent = {message.client: (message.size - 121) // 256 for message in recorder.messages}
    numbers = {name.split("/")[1]: value for name, value in defense.costs().items()}
    assert numbers["ciphertexts"] == sum(sent.values())
    assert numbers["ciphertexts_of_the_sum"] == sent[MIXED.index(1.0)]


def test_simulated_seconds_are_ciphertexts_times_the_sample():
    """Encryption and addition for every client's, decryption once for those of the sum."""
    defense = SIMULATED()
    trained(defense)
    cost, numbers = defense._channel._cost, {name.split("/")[1]: value for name, value in defense.costs().items()}
    assert numbers["encrypt_seconds"] == pytest.approx(numbers["ciphertexts"] * cost.encrypt)
    assert numbers["add_seconds"] == pytest.approx(numbers["ciphertexts"] * cost.add)
    assert numbers["decrypt_seconds"] == pytest.approx(numbers["ciphertexts_of_the_sum"] * cost.decrypt)


@pytest.mark.parametrize("make", [ENCRYPTED, MASKED])
def test_secrets_are_forgotten_when_the_run_is_over(make):
    """Keys, seeds and identities."""
    federation = small_federation(net=NET, capacities=MIXED)
    make_trainer(1, callbacks=[make()]).fit(federation, datamodule=Blobs(SIZES))
    left = {name: getattr(federation.channel, name, None) for name in ("_private", "_pool", "_clients")}
    assert not any(left.values()), left


def test_what_masking_tells():
    """Clients that fell away after they had agreed on masks, and the share of values that were cut."""
    defense = over(Dying((1, 4), "masked"), MASKED, range=1e-3, outside="clip")
    with pytest.warns(UserWarning, match="did not arrive"):
        trained(defense)
    numbers = defense.measurements()
    assert (numbers["secagg/dropped"], numbers["secagg/given_up"]) == (2, 0)
    assert 0.1 < numbers["secagg/clipped"] < 1


def test_masks_are_bound_to_16_bit_values_as_well():
    """Whose type numpy does not have; nobody dies in vain."""
    found = []
    for defense in ([], [over(Dying([1], "masked"), MASKED)]):
        federation = small_federation(net=NET, capacities=MIXED)
        make_trainer(1, precision="bf16-true", callbacks=defense).fit(federation, datamodule=Blobs(SIZES))
        found.append(federation.space.read(federation.net).float())
    assert (found[0] - found[1]).abs().max() < 1


@pytest.mark.parametrize("channel", CHANNELS)
def test_rounds_of_one_client_or_none(channel):
    """Drawn by coins: encrypted as ever; masked, nobody is left alone with the server."""
    recorder = Recorder()
    trained(CHANNELS[channel](), recorder, participation=0.2, sampling="poisson", rounds=6)
    plain = Recorder()
    trained(plain, participation=0.2, sampling="poisson", rounds=6)
    counts = [updates for *_, updates in plain.aggregates]
    assert min(counts) < 2 <= max(counts)
    expected = [0 if channel == "masked" and count < 2 else count for count in counts]
    assert [updates for *_, updates in recorder.aggregates] == expected


def test_clipped_changes_stay_clipped():
    """DP-FedAvg's bound holds for what is summed, after rounding."""
    recorder, start = Recorder(), initial(small_federation(net=NET, capacities=[1.0]), Blobs(SIZES))
    trained(DPFedAvg(noise=0.0, clip=0.01), SIMULATED(bits=12), recorder, capacities=[1.0])
    assert 0 < float((recorder.aggregates[0][0] - start).norm()) <= 0.01


@pytest.mark.parametrize("make", [ENCRYPTED, MASKED])
def test_secrets_are_gone_after_a_failure(make):
    """Also where a run ends with an error."""

    class Failing(FederatedCallback):
        def on_server_update(self, trainer, federation, aggregate):
            """The first round is over."""
            Failing.channel = federation.channel
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        trained(make(), Failing())
    left = vars(Failing.channel)
    assert not left.get("_private")
    assert not left.get("_clients")
    assert not left["_identities"]


def test_rows_that_are_not_sent_are_received():
    """Under label masks a client sends fewer rows than it gets."""
    reports, local = Reports(), LocalTraining(batch_size=4, optimizer=sgd(0.2), mask_labels=True)
    trained(SIMULATED(), reports, local=local, sizes=(1, 1, 2, 2), capacities=[1.0])
    clients = reports.rounds[0].clients
    assert len({client.bytes_down for client in clients}) == 1
    assert all(client.bytes_up <= client.bytes_down + 121 for client in clients)


@pytest.mark.parametrize("make", [ENCRYPTED, SIMULATED])
def test_one_key_for_the_whole_run(monkeypatch, make):
    """Made, and measured, before the first round."""
    made = []
    monkeypatch.setattr(paillier_channel, "generate", lambda bits: made.append(bits) or generate(bits))
    trained(make(), rounds=3)
    assert made == [1024]


def test_as_many_ciphertexts_come_down_as_go_up():
    """In every round, although other clients with other submodels take part."""
    federation, reports = small_federation(net=NET, capacities=MIXED, participation=0.5), Reports()
    make_trainer(4, callbacks=[SIMULATED(), reports]).fit(federation, datamodule=Blobs(SIZES))
    for report in reports.rounds:
        assert [one.bytes_down for one in report.clients] == [one.bytes_up - 121 for one in report.clients]

"""Budgets against an adversary who keeps everything that ever left: over interruptions, repetitions and more rounds."""

import json
import os

import pytest
import torch
from accounting_oracle import pld_oracle, rdp_oracle
from federation_kit import Blobs, make_trainer, run, small_federation
from ledger_kit import LOCAL, SIZES, Adversary, budget, cut_off, fitted

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.privacy.accounting import Steps
from app.results.run.ledger import LEDGER
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.nbafl import NbAFL

pytestmark = [pytest.mark.usefixtures("no_figures"), pytest.mark.filterwarnings("ignore:Full backward hook")]

DELTA = 1e-5
KINDS = {
    "dp-sgd": lambda **settings: DPSGD(noise=1.0, **settings),
    "dp-fedavg": lambda **settings: DPFedAvg(noise=1.0, delta=DELTA, **settings),
    "nbafl": lambda **settings: NbAFL(30.0, DELTA, sensitivity="worst-case", **settings),
}


def lines(path):
    """Records of the ledger's file."""
    return [json.loads(line) for line in (path / LEDGER).read_text().splitlines()]


def test_every_upload_of_an_interrupted_round_counts_under_secret_noise(tmp_path):
    """Killed three times in the second of two rounds: four different uploads left; 8.25, not 5.75."""
    adversary = Adversary()
    for _ in range(3):
        cut_off(tmp_path / "a", 2, DPSGD(noise=1.0, secret_noise=True), adversary, at=1)
    fitted(tmp_path / "a", 2, DPSGD(noise=1.0, secret_noise=True), adversary)
    assert [adversary.seen(client) for client in range(3)] == [5, 5, 5]
    truth = rdp_oracle([Steps(1.0, 1 / 5, 5 * adversary.seen(0))], DELTA)
    assert truth == pytest.approx(8.25, rel=0.01)
    assert budget(tmp_path / "a")["epsilon"] == pytest.approx(truth, rel=0.01)
    assert not any("checkpoints only" in note for note in budget(tmp_path / "a")["notes"])


def test_every_release_of_an_interrupted_round_counts_under_secret_noise(tmp_path):
    """NbAFL's uploads by their own noise; DP-FedAvg's means."""
    adversary, nbafl = Adversary(), {"sensitivity": "worst-case", "secret_noise": True}
    cut_off(tmp_path / "n", 2, NbAFL(30.0, DELTA, **nbafl), adversary, at=0)
    fitted(tmp_path / "n", 2, NbAFL(30.0, DELTA, **nbafl), adversary)
    assert adversary.seen(0) == 3
    truth = pld_oracle([Steps(noise / 60, 1.0, 1) for noise in adversary.noise], DELTA)
    assert budget(tmp_path / "n")["epsilon"] == pytest.approx(truth, rel=0.01)
    assert len(adversary.noise) == 3
    adversary = Adversary()
    for _ in range(2):
        cut_off(tmp_path / "d", 2, DPFedAvg(noise=1.0, delta=DELTA, secret_noise=True), adversary, at=1)
    fitted(tmp_path / "d", 2, DPFedAvg(noise=1.0, delta=DELTA, secret_noise=True), adversary)
    assert [len(means) for means in adversary.means.values()] == [1, 3]
    assert not torch.equal(*adversary.means[1][:2])
    assert budget(tmp_path / "d")["epsilon"] == pytest.approx(rdp_oracle([Steps(1.0, 1.0, 4)], DELTA), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_repeats_its_noise_counts_once(kind, tmp_path):
    """Cut off twice, once before the first checkpoint; the newest checkpoint is lost: all as if nothing had been."""
    whole, adversary = Adversary(), Adversary()
    fitted(tmp_path / "whole", 4, KINDS[kind](), whole)
    for at in (0, 3):
        cut_off(tmp_path / "part", 4, KINDS[kind](), adversary, at)
    (tmp_path / "part" / "checkpoints" / "round-00003.ckpt").unlink()
    fitted(tmp_path / "part", 4, KINDS[kind](), adversary)
    assert budget(tmp_path / "part") == budget(tmp_path / "whole")
    for name in ("metrics.jsonl", "clients.csv", "plan.json"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert adversary.seen(0) == whole.seen(0) == 4


@pytest.mark.parametrize("settings", [{"noise": 2.0, "target_epsilon": 5.0}, {"target_epsilon": 4.0}], ids=str)
def test_who_is_out_does_not_depend_on_interruptions(settings, tmp_path):
    """The file knows rounds that are still to be repeated; decisions are taken as in the uninterrupted run."""
    whole, adversary = Adversary(), Adversary()
    fitted(tmp_path / "whole", 6, DPSGD(**settings), whole)
    cut_off(tmp_path / "part", 6, DPSGD(**settings), adversary, at=2)
    (tmp_path / "part" / "checkpoints" / "round-00002.ckpt").unlink()
    fitted(tmp_path / "part", 6, DPSGD(**settings), adversary)
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert budget(tmp_path / "part") == budget(tmp_path / "whole")


class Auditor(FederatedCallback):
    """Looks at the disk whenever something is released."""

    kind = "recorder"

    def __init__(self, path, per_client):
        self.path, self.per_client, self.looks = path, per_client, 0

    def on_message(self, trainer, federation, message):
        """The upload of a client has its entry, and the disk has the whole file."""
        if self.per_client:
            self.check(federation.plan.round, message.client)

    def on_server_update(self, trainer, federation, aggregate):
        """The release of the server, too."""
        if not self.per_client:
            self.check(federation.plan.round, -1)

    def check(self, round_, client):
        """Entered, and synced."""
        entered = [spent[0] for line in lines(self.path) if line["round"] == round_ + 1 for spent in line["spent"]]
        assert client in entered
        assert Auditor.synced == (self.path / LEDGER).stat().st_size
        self.looks += 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_ledger_is_on_the_disk_before_anything_leaves(kind, tmp_path, monkeypatch):
    """What a crash of the machine cannot take back is what was synced."""
    plain = os.fsync

    def watched(descriptor):
        plain(descriptor)
        path = tmp_path / "a" / LEDGER
        if path.is_file() and os.path.samestat(os.fstat(descriptor), path.stat()):
            Auditor.synced = path.stat().st_size

    monkeypatch.setattr(os, "fsync", watched)
    auditor = Auditor(tmp_path / "a", per_client=kind != "dp-fedavg")
    fitted(tmp_path / "a", 2, KINDS[kind](secret_noise=True), auditor)
    assert auditor.looks == (6 if auditor.per_client else 2)


def test_more_rounds_of_dp_fedavg_stay_within_the_target(tmp_path):
    """Two rounds were planned for 8 and spent it; ten more at the noise of twelve would make it 11.5."""
    adversary, settings = Adversary(), {"target_epsilon": 8.0, "delta": DELTA}
    fitted(tmp_path / "a", 2, DPFedAvg(**settings), adversary)
    federation = fitted(tmp_path / "a", 12, DPFedAvg(**settings), adversary)
    used = [one["dp_fedavg/noise_of_thinnest_cell"] * 3 for one in adversary.metrics]
    assert len(used) == 12
    truth = rdp_oracle([Steps(noise, 1.0, 1) for noise in used], DELTA)
    assert truth == pytest.approx(budget(tmp_path / "a")["epsilon"], rel=0.01)
    assert 7.9 < budget(tmp_path / "a")["epsilon"] <= 8.0
    assert federation.trainer.current_epoch == 12


def test_a_longer_run_that_is_interrupted_keeps_its_second_noise(tmp_path):
    """Resumed, it does not choose a third one."""
    settings, adversaries = {"target_epsilon": 8.0, "delta": DELTA}, (Adversary(), Adversary())
    for name, adversary in zip(("whole", "part"), adversaries, strict=True):
        fitted(tmp_path / name, 2, DPFedAvg(**settings), adversary)
    cut_off(tmp_path / "part", 5, DPFedAvg(**settings), adversaries[1], at=3)
    for name, adversary in zip(("whole", "part"), adversaries, strict=True):
        fitted(tmp_path / name, 5, DPFedAvg(**settings), adversary)
    assert budget(tmp_path / "part") == budget(tmp_path / "whole")
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_more_rounds_of_nbafl_count_the_uploads_before(tmp_path):
    """Worst-case sensitivity: epsilon is that of the noise that each upload had, and keeps to the budget."""
    adversary, settings = Adversary(), {"epsilon": 2.0, "delta": DELTA, "sensitivity": "worst-case"}
    fitted(tmp_path / "a", 1, NbAFL(**settings), adversary)
    first = budget(tmp_path / "a")["epsilon"]
    fitted(tmp_path / "a", 4, NbAFL(**settings), adversary)
    used = [one["nbafl/noise_up"] / 60 for one in adversary.metrics]
    assert used[0] < used[1] == used[3]
    truth = pld_oracle([Steps(noise, 1.0, 1) for noise in used], DELTA)
    assert budget(tmp_path / "a")["epsilon"] == pytest.approx(truth, rel=0.01)
    assert first < budget(tmp_path / "a")["epsilon"] <= 2.0


PLANNED = {
    "dp-sgd": lambda: DPSGD(target_epsilon=8.0),
    "dp-fedavg": lambda: DPFedAvg(target_epsilon=8.0, delta=DELTA),
    "nbafl": lambda: NbAFL(8.0, DELTA, sensitivity="worst-case"),
}


@pytest.mark.parametrize("kind", PLANNED)
def test_a_repeated_round_keeps_its_noise_although_more_rounds_are_planned(kind, tmp_path):
    """The same key with another noise level would be solved for what it covers."""
    adversary = Adversary()
    cut_off(tmp_path / "a", 2, PLANNED[kind](), adversary, at=0)
    fitted(tmp_path / "a", 5, PLANNED[kind](), adversary)
    first, again = adversary.means[0] if kind == "dp-fedavg" else adversary.uploads[0, 0]
    torch.testing.assert_close(first, again, rtol=1e-12, atol=1e-12)
    assert budget(tmp_path / "a")["epsilon"] <= 8.0


def test_nominal_nbafl_says_what_its_uploads_prove(tmp_path):
    """Also over more rounds, whose noise is another."""
    adversary = Adversary()
    for rounds in (1, 3):
        fitted(tmp_path / "a", rounds, NbAFL(0.5, DELTA), adversary)
    used = [one["nbafl/noise_up"] / 60 for one in adversary.metrics]
    truth = pld_oracle([Steps(noise, 1.0, 1) for noise in used], DELTA)
    [note] = [note for note in budget(tmp_path / "a")["notes"] if "proves" in note]
    assert float(note.rpartition(" ")[2]) == pytest.approx(truth, rel=0.01)
    assert budget(tmp_path / "a")["epsilon"] == 0.5


def test_a_budget_that_is_gone_ends_the_run(tmp_path):
    """With what is spent, and what to do."""
    fitted(tmp_path / "a", 2, DPFedAvg(target_epsilon=8.0, delta=DELTA))
    with pytest.raises(UserError, match=r"within 3 (?s:.*)and 7.998 is spent(?s:.*)max_epochs"):
        fitted(tmp_path / "a", 4, DPFedAvg(target_epsilon=3.0, delta=DELTA))
    fitted(tmp_path / "n", 1, NbAFL(2.0, DELTA, sensitivity="worst-case"))
    with pytest.raises(UserError, match=r"within 0.1 (?s:.*) is spent(?s:.*)max_epochs"):
        fitted(tmp_path / "n", 2, NbAFL(0.1, DELTA, sensitivity="worst-case"))


def test_a_budget_that_lost_attempts_have_spent_ends_the_run(tmp_path):
    """Noise and target are given, three releases fit; all three were attempts at the first round."""
    settings = {"noise": 2.0, "target_epsilon": 4.5, "delta": DELTA, "secret_noise": True}
    adversary = Adversary()
    for _ in range(3):
        cut_off(tmp_path / "a", 5, DPFedAvg(**settings), adversary, at=0)
    federation = fitted(tmp_path / "a", 5, DPFedAvg(**settings), adversary)
    assert len(adversary.means[0]) == 3, "what the test assumes: a fourth would exceed the target"
    assert rdp_oracle([Steps(2.0, 1.0, 3)], DELTA) == pytest.approx(budget(tmp_path / "a")["epsilon"], rel=0.01)
    assert budget(tmp_path / "a")["epsilon"] <= 4.5
    assert federation.trainer.current_epoch == 0


def test_a_longer_run_of_nbafl_that_is_interrupted_keeps_its_second_noise(tmp_path):
    """To the last bit."""
    settings = {"epsilon": 2.0, "delta": DELTA, "sensitivity": "worst-case"}
    whole, part = Adversary(), Adversary()
    for name, adversary in (("whole", whole), ("part", part)):
        fitted(tmp_path / name, 1, NbAFL(**settings), adversary)
    cut_off(tmp_path / "part", 4, NbAFL(**settings), part, at=2)
    for name, adversary in (("whole", whole), ("part", part)):
        fitted(tmp_path / name, 4, NbAFL(**settings), adversary)
    assert budget(tmp_path / "part") == budget(tmp_path / "whole")
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


class Absent(FederatedCallback):
    """One client withdraws, another refuses."""

    def withdraws(self, federation, client):
        """Client 0."""
        return client == 0

    def on_client_start(self, trainer, federation, client):
        """Client 1."""
        if client.client == 1:
            client.refusal = "it does not like the model"


@pytest.mark.parametrize("kind", ["dp-sgd", "nbafl"])
def test_who_released_nothing_pays_nothing(kind, tmp_path):
    """The file first says that all may, then that one has."""
    fitted(tmp_path / "a", 1, KINDS[kind](), Absent())
    assert list(budget(tmp_path / "a")["clients"]) == ["2"]
    assert [[spent[0] for spent in line["spent"]] for line in lines(tmp_path / "a")] == [[0, 1, 2], [2]]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_recorder_the_statement_says_what_is_not_counted(kind):
    """Only under secret noise, since repeated rounds count once anyway."""
    for secret in (True, False):
        defense, federation = KINDS[kind](secret_noise=secret), small_federation(local=LOCAL)
        run(federation, Blobs(SIZES), 1, [defense])
        assert any("checkpoints only" in note for note in defense.statement(federation).notes) == secret


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_a_ledger_is_refused(kind, tmp_path):
    """What its rounds have released is not known."""
    trainer = make_trainer(1)
    trainer.fit(small_federation(local=LOCAL), datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    further = make_trainer(2, callbacks=[KINDS[kind]()])
    with pytest.raises(UserError, match="says nothing of"):
        further.fit(small_federation(local=LOCAL), datamodule=Blobs(SIZES), ckpt_path=tmp_path / "plain.ckpt")

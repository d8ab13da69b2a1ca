"""Early stopping on the clients' reference sets: when the run ends, and that it stays ended."""

import json
import math
from functools import partial

import pytest
import torch
from federation_kit import TINY_MLP, Recorder, make_trainer, run, sgd, small_federation
from regulariser_kit import HALVES, ROOMY, trained, with_reference
from run_kit import last_checkpoint, train
from torch.nn.functional import cross_entropy

from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.models import CNN
from callbacks.defenses.local_early_stopping import LocalEarlyStopping, _reference_loss

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
SCRIPT = "callbacks.defenses.local_early_stopping._reference_loss"


class Scripted:
    """Gives the losses of a script, round by round, instead of measuring any."""

    def __init__(self, losses):
        self.losses = losses

    def __call__(self, federation):
        """The loss of the present round."""
        return self.losses[federation.plan.round]


def rounds_of(losses, monkeypatch, defense, **settings):
    """Rounds that a run with these losses has."""
    monkeypatch.setattr(SCRIPT, Scripted(losses))
    recorder = Recorder()
    federation = small_federation(local=LOCAL)
    run(federation, with_reference(), len(losses), [defense, recorder], **settings)
    assert federation.trainer.current_epoch == len(recorder.started)
    return len(recorder.started)


NAN = float("nan")
CASES = {
    "falls for ever": ([5, 4, 3, 2, 1], {"patience": 1}, 5),
    "rises at once": ([1, 2, 3, 4, 5], {"patience": 1}, 2),
    "three of patience": ([3, 2, 2.5, 2.4, 2.3, 2.2], {"patience": 3}, 5),
    "equal is no gain": ([3, 3, 3, 3, 3], {"patience": 2}, 3),
    "a gain in between": ([3, 4, 2, 4, 4, 4], {"patience": 2}, 5),
    "too little a gain": ([3, 2.95, 2.9, 2.85, 2.8], {"patience": 2, "min_gain": 0.5}, 3),
    "little gains add up": ([3, 2.6, 2.4, 2.2, 1.8, 1.7], {"patience": 2, "min_gain": 0.5}, 6),
    "a model that is lost": ([3, NAN, NAN, NAN, NAN], {"patience": 2}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_when_the_run_ends(case, monkeypatch):
    """Patience counts rounds in a row that lie not more than min_gain below the lowest so far."""
    losses, settings, expected = CASES[case]
    assert rounds_of(losses, monkeypatch, LocalEarlyStopping(**settings)) == expected


def test_the_trainers_least_rounds_come_first(monkeypatch, capsys):
    """A shadow federation runs as long as the attacked one, whatever its own losses; the run ends there at once."""
    assert rounds_of([1, 2, 3, 4, 5], monkeypatch, LocalEarlyStopping(1), min_epochs=4) == 4
    assert "stopped early after round 4: the loss on the clients' reference sets is 4.0000; " in capsys.readouterr().out
    assert rounds_of([1, 2, 3, 4, 5], monkeypatch, LocalEarlyStopping(1), min_epochs=5) == 5
    assert capsys.readouterr().out == ""


def test_it_says_why(monkeypatch, capsys):
    """Once, with the round in which the loss was lowest; a run that has all its rounds says nothing."""
    rounds_of([3, 2, 2.5, 2.4, 2.3, 2.2], monkeypatch, LocalEarlyStopping(3))
    [message] = [line for line in capsys.readouterr().out.splitlines() if "stopped early" in line]
    assert message.startswith("stopped early after round 5: ")
    assert message.endswith("it was lowest after round 2, 2.0000")
    rounds_of([1, 2], monkeypatch, LocalEarlyStopping(1))
    assert capsys.readouterr().out == ""


def test_the_loss_is_that_of_the_servers_model_on_all_reference_samples():
    """After the round, every sample counting the same; it joins the metrics of the round."""
    defense, data = LocalEarlyStopping(), with_reference((8, 20, 40))
    federation = small_federation(TINY_MLP, local=LOCAL, capacities=HALVES)
    run(federation, data, 1, [defense])
    ids = torch.cat([data.reference_indices(client) for client in range(3)])
    images, labels = data.store.batch(ids, torch.float64)
    with torch.no_grad():
        expected = float(cross_entropy(federation.net.eval()(images), labels))
    assert defense.measurements() == {"defense/reference_loss": pytest.approx(expected, abs=1e-12)}
    assert federation.hooks.measurements() == defense.measurements()


def test_processes_share_the_work(monkeypatch):
    """Each scores some of the clients; all see the same sum, in the order of the clients."""
    parts = []

    def two(own):
        parts.append(own)
        return parts if len(parts) == 2 else [own]

    monkeypatch.setattr("callbacks.defenses.local_early_stopping.gather", two)
    defense, data = LocalEarlyStopping(), with_reference()
    federation = small_federation(local=LOCAL)
    run(federation, data, 1, [defense])
    whole = defense.measurements()["defense/reference_loss"]
    parts.clear()
    losses = []
    for rank in (0, 1):
        monkeypatch.setattr(type(federation), "global_rank", rank)
        monkeypatch.setattr(type(federation.trainer), "world_size", 2)
        losses.append(_reference_loss(federation))
    assert [sorted(part) for part in parts] == [[2], [0, 1]], "the client with the most samples alone"
    assert losses[1] == whole


@pytest.mark.parametrize("net", [TINY_MLP, partial(CNN, u=4), partial(CNN, u=4, statistics="running")])
def test_watching_changes_nothing(net):
    """With patience to spare, bit for bit the plain run, in single precision; running statistics included."""
    shape = {} if net is TINY_MLP else {"shape": ROOMY}
    ends = [
        trained(*defenses, net=net, data=with_reference(**shape), precision="32-true")
        for defenses in ([LocalEarlyStopping(100)], [])
    ]
    assert torch.equal(*ends)


def test_an_interrupted_run_stops_in_the_same_round(tmp_path, monkeypatch):
    """The count goes on where it was, and a run that has ended is not taken up again."""
    losses = [3, 2, 2.5, 2.4, 2.3, 2.2, 2.1]
    monkeypatch.setattr(SCRIPT, Scripted(losses))
    make = partial(small_federation, TINY_MLP, local=LOCAL)
    whole = run(make(), with_reference(), 7, [LocalEarlyStopping(3)], precision="32-true")
    first, second, third = (make_trainer(rounds, "32-true", [LocalEarlyStopping(3)]) for rounds in (3, 7, 9))
    first.fit(make(), datamodule=with_reference())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = make()
    second.fit(resumed, datamodule=with_reference(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert torch.equal(resumed.space.read(resumed.net), whole)
    assert second.current_epoch == 5
    second.save_checkpoint(tmp_path / "end.ckpt")
    again = make()
    third.fit(again, datamodule=with_reference(), ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert third.current_epoch == 5
    assert torch.equal(again.space.read(again.net), whole)


@pytest.mark.usefixtures("no_figures")
def test_a_run_of_the_command_line(tmp_path, capsys):
    """Metrics hold the loss, the folder is that of a finished run, and the window of the transcript is its end."""
    folder = train(tmp_path, "a", "--config", "stop-early", "--defenses.stop_early.min_gain", "5", rounds=9)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert all(math.isfinite(record["defense/reference_loss"]) for record in records)
    assert "stopped early after round 4" in capsys.readouterr().out
    assert (folder / "summary.json").is_file()
    kept = sorted(path.name for path in (folder / "transcript").glob("round-*"))
    assert kept == ["round-00003.npz", "round-00004.npz"]
    assert last_checkpoint(folder)["epoch"] == 3


def test_wrong_settings_are_told_at_once():
    """The numbers; then the missing reference sets, and that the server has no whole model."""
    for defense, options in (
        (LocalEarlyStopping(0, -1.0), ("defenses.NAME.patience", "defenses.NAME.min_gain")),
        (LocalEarlyStopping(), ("data.holdout.reference", "trainer.max_epochs")),
    ):
        with pytest.raises(UserError) as error:
            trained(defense, rounds=1, personal=["*classifier*"])
        remedies = " ".join(problem.remedy for problem in error.value.problems)
        assert len(error.value.problems) == 2
        assert all(f"--{option}" in remedies for option in options)


def test_batch_norm_needs_two_samples_of_every_client():
    """One sample has no statistics."""
    data = with_reference((5, 40), 0.2, shape=ROOMY)
    with pytest.raises(UserError, match=r"fewer than 2 reference samples for client 0 \(it has 1\)"):
        trained(LocalEarlyStopping(), net=partial(CNN, u=4), data=data, rounds=1, capacities=None)
    trained(
        LocalEarlyStopping(),
        net=partial(CNN, u=4, norm="group", channels_per_group=2),
        data=data,
        rounds=1,
        capacities=None,
    )


def test_what_it_does_to_privacy():
    """The last round depends on private data; shadows must go through the same training."""
    assert LocalEarlyStopping().traits() == {"trains-differently", "stops-early"}
    assert LocalEarlyStopping.may_stop

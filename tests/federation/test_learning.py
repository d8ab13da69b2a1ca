"""A run that learns nothing says so, with the likely cause; one that is merely short is left in peace."""

import warnings

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, initial, make_trainer, run, small_federation, whole_batch
from run_kit import Scale, command, exit_code, no_figures, train  # noqa: F401  a fixture

from app.federation.hooks import FederatedCallback
from app.federation.learning import RoundSigns, chance
from app.results.comparison.notes import notes_of_row
from app.results.comparison.rows import RowRuns
from app.results.run.record import read_run
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL

SIZES = (12, 12, 12)


def told(*callbacks: FederatedCallback, rounds: int = 6, **settings: object) -> list[str]:
    """Warnings of a run about its learning."""
    settings.setdefault("local", whole_batch(lr=1e-9))
    federation = small_federation(TINY_MLP, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(federation, Blobs(SIZES, tests=60), rounds, callbacks)
    texts = [str(one.message) for one in caught]
    found = federation.learning.warnings(federation)
    assert [text for text in texts if text in found] == found, "all of them are shown"
    return found


def test_chance_is_the_larger_of_guessing_and_the_most_frequent_class():
    """Three classes; of the test samples, two thirds are of one class."""
    federation, data = small_federation(), Blobs(SIZES, tests=30)
    initial(federation, data)
    counts = data.store.labels[data.common_test].bincount()
    assert chance(federation) == max(1 / data.shape.classes, float(counts.max()) / 30)
    data.store.labels[data.common_test[:20]] = 0
    data.store.labels[data.common_test[20:]] = 1
    assert chance(federation) == pytest.approx(2 / 3)


def test_a_run_at_chance_says_so():
    """Six rounds at a learning rate of next to nothing: neither noise nor divergence is to blame."""
    (text,) = told()
    assert "no better than guessing" in text
    assert "last 5 of 6 rounds" in text
    assert "learning rate 1e-09" in text
    assert "--trainer.max_epochs" in text


def test_short_runs_and_runs_that_learn_are_left_in_peace():
    """A demo of a few rounds, and one that has learnt."""
    assert told(rounds=3) == []
    assert told(local=whole_batch(lr=0.5, epochs=20)) == []


def at_chance(*callbacks: FederatedCallback, diverged: int = 0) -> str:
    """What a run with these defenses says after six rounds at chance."""
    federation = small_federation(TINY_MLP)
    initial(federation, Blobs(SIZES, tests=60), callbacks=callbacks)
    federation.learning.rounds = [RoundSigns(3, 3, diverged, 0, 0, 1 / 3, 60, True)] * 6
    (text,) = federation.learning.warnings(federation)
    return text


def test_noise_is_named_before_all_else():
    """With its strength and the option that lowers it; the learning rate is not to blame."""
    for diverged in (0, 1):
        text = at_chance(MemDefense(0.9), DPSGD(noise=4.0, delta=1e-3), diverged=diverged)
        assert "DPSGD adds noise of 4 times clip 1" in text
        assert "lower --defenses.NAME.noise" in text
        assert "--model.local.optimizer.lr" not in text
        assert ("MemDefense gives up 90%" in text) is (not diverged)
    assert "raise --defenses.NAME.target_epsilon" in at_chance(DPFedAvg(target_epsilon=1.0, delta=0.1, noise=None))
    assert "DPFedAvg adds noise of 5 times clip 1" in at_chance(DPFedAvg(noise=5.0, delta=0.1))
    assert "raise --defenses.NAME.epsilon" in at_chance(NbAFL(epsilon=0.5, delta=1e-3))


class Diverging(FederatedCallback):
    """Losses are not a number."""

    kind = "recorder"

    def client_loss(self, federation, client, batch, logits, loss):
        """NaN."""
        return loss * float("nan")


def test_divergence_is_a_matter_of_the_learning_rate():
    """All clients, in all rounds, also in a run of two; what is done to updates is not to blame."""
    (text,) = told(MemDefense(0.9), Diverging(), rounds=2)
    assert "in 2 of 2 rounds no client sent a usable update (round 1, 2): 6 diverged" in text
    assert "lower --model.local.optimizer.lr" in text
    assert "MemDefense" not in text


def test_destroyed_updates_are_a_matter_of_the_defenses():
    """They were finite before."""
    (text,) = told(Scale(float("inf")), rounds=1)
    assert "3 sent an update that could not be used" in text


def test_refusing_clients_are_counted():
    """None of them trains."""

    class Refusing(FederatedCallback):
        """All clients refuse."""

        def on_client_start(self, trainer, federation, client):
            """For a reason."""
            client.refusal = "of the weather"

    (text,) = told(Refusing(), rounds=2)
    assert "6 refused to train. Likely cause: as the warnings of these rounds say" in text


def test_a_resumed_run_remembers_the_rounds_before(tmp_path):
    """Signs are part of the checkpoint."""
    federation = small_federation(TINY_MLP, local=whole_batch(lr=1e-9))
    trainer = make_trainer(4, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(federation, datamodule=Blobs(SIZES, tests=60))
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    again = small_federation(TINY_MLP, local=whole_batch(lr=1e-9))
    with pytest.warns(UserWarning, match="no better than guessing.*last 5 of 6 rounds"):
        make_trainer(6).fit(again, datamodule=Blobs(SIZES, tests=60), ckpt_path=tmp_path / "it.ckpt", weights_only=True)
    assert torch.load(tmp_path / "it.ckpt", weights_only=True)["learning"] == again.learning.state_dict()[:4]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.filterwarnings("ignore")
def test_summary_and_table_tell_it(tmp_path):
    """`summary.json`, what reports read of it, and the notes of a row."""
    still = ("--model.local.optimizer", "SGD", "--model.local.optimizer.lr", "1e-9")
    folder = train(tmp_path, "still", *still, rounds=6)
    record = read_run(folder)
    (text,) = record.warnings
    assert "no better than guessing" in text
    row = RowRuns("digits", "FedAvg", "none", (record,))
    assert f"still: {text}" in notes_of_row(row, [0], frozenset())
    assert read_run(train(tmp_path, "short", *still, rounds=2)).warnings == ()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.filterwarnings("ignore")
def test_a_run_without_any_update_fails(tmp_path, capsys):
    """Exit code 1, and the reason."""
    infinite = ("--defenses.scale", "run_kit.Scale", "--defenses.scale.factor", "1e39")
    assert exit_code("fit", *command(tmp_path, "none", *infinite, rounds=2)) == 1
    error = capsys.readouterr().err
    assert "error: the model is still the initial one: in 2 of 2 rounds no client sent a usable update" in error
    assert "weaken the defenses" in error

"""Settings that cannot work are refused before any training, all at once, with the way out."""

from functools import partial
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, make_trainer, small_federation, whole_batch
from torch.utils.data import DataLoader

from app.common.errors import UserError
from app.federation.checks.trainer_options import RULES
from app.federation.evaluation import Evaluation
from app.federation.local_training import LocalTraining
from app.models import CNN


def refusal(federation, **trainer: object) -> UserError:
    """The error of a run that must not start."""
    with pytest.raises(UserError) as caught:
        make_trainer(1, **trainer).fit(federation, datamodule=Blobs((5, 8, 11)))
    return caught.value


def stub_trainer(**options: object) -> SimpleNamespace:
    """What the checks read of a trainer; a real one refuses or corrects some of these options by itself."""
    data = Blobs((5, 8, 11))
    data.setup()
    trainer = make_trainer(1)
    sound = {rule.option: getattr(trainer, rule.option) for rule in RULES} | {"min_epochs": None, "callbacks": []}
    return SimpleNamespace(**{"datamodule": data, **sound, **options})


def test_every_problem_is_reported_at_once():
    """Federation, local training, evaluation and trainer in one error."""
    federation = small_federation(
        capacities=[1.0, 1.5],
        participation=0.0,
        block_size=0,
        local=LocalTraining(epochs=0, batch_size=0, proximal=-1.0),
        evaluation=Evaluation(every=0, limit=0),
    )
    trainer = stub_trainer(gradient_clip_val=1.0, accumulate_grad_batches=4, precision="16-mixed")
    federation.trainer = trainer
    with pytest.raises(UserError) as caught:
        federation.prepare()
    expected = [
        "model.capacities is [1.0, 1.5]",
        "model.local.epochs is 0",
        "model.local.batch_size is 0",
        "model.local.proximal is -1.0",
        "model.participation is 0.0",
        "model.evaluation.every is 0",
        "model.evaluation.limit is 0",
        "model.block_size is 0",
        "--trainer.gradient_clip_val is 1.0",
        "--trainer.accumulate_grad_batches is 4",
        "--trainer.precision is 16-mixed",
    ]
    assert len(caught.value.problems) == len(expected)
    for problem, words in zip(caught.value.problems, expected, strict=True):
        assert words in problem.cause
        assert problem.consequence
        assert "--" in problem.remedy
        assert str(problem) in str(caught.value)


def test_all_but_the_trainer_at_once_in_a_run():
    """The same through `fit`."""
    federation = small_federation(capacities=[2.0, 1.0], participation=-1.0, local=LocalTraining(epochs=0))
    assert len(refusal(federation).problems) == 3


WRONG = {
    "too few capacities": ({"capacities": [1.0, 0.5]}, "--data.partition.clients"),
    "no capacity": ({"capacities": []}, "--model.capacities.rates"),
    "negative capacity": ({"capacities": [1.0, -0.5, 1.0]}, "--model.capacities"),
    "capacity zero": ({"capacities": [0.0]}, "--model.capacities"),
    "participation above one": ({"participation": 1.5}, "--model.participation"),
    "no steps": ({"local": LocalTraining(steps=0)}, "--model.local.steps"),
    "no evaluation batch": ({"evaluation": Evaluation(batch_size=0)}, "--model.evaluation.batch_size"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_problem_alone(case):
    """Exactly one complaint, naming the option to change."""
    settings, option = WRONG[case]
    (problem,) = refusal(small_federation(**settings)).problems
    assert option in problem.remedy


def test_half_precision_is_refused():
    """Gradients would vanish; bf16-mixed is the way out."""
    (problem,) = refusal(small_federation(), precision="16-true").problems
    assert "bf16-mixed" in problem.remedy


def test_trainer_options_without_effect_are_refused():
    """Lightning would refuse them too, but advise automatic optimisation, which cannot work here."""
    clip, accumulate = refusal(small_federation(), gradient_clip_val=0.5, accumulate_grad_batches=2).problems
    assert "--model.local.clip_norm" in clip.remedy
    assert "--model.local.batch_size" in accumulate.remedy


def test_batch_norm_refuses_clients_with_one_sample():
    """Named before any training, with the norm that can take them."""
    with pytest.raises(UserError, match=r"--model\.net\.norm group"):
        make_trainer(1).fit(small_federation(partial(CNN, u=2)), datamodule=Blobs((5, 1, 4), PICTURES))
    settings = {"norm": "group", "channels_per_group": 2}
    make_trainer(1).fit(small_federation(partial(CNN, u=2, **settings)), datamodule=Blobs((5, 1, 4), PICTURES))


class Foreign(pl.LightningDataModule):
    """A data module of the usual kind."""

    def train_dataloader(self):
        """Some numbers."""
        return DataLoader(torch.arange(4))


@pytest.mark.parametrize(
    "source", [{"datamodule": Foreign()}, {"train_dataloaders": DataLoader(torch.arange(4))}], ids=["module", "loader"]
)
def test_data_that_nobody_owns_are_refused(source):
    """A federation needs clients; the error shows the call that works."""
    with pytest.raises(UserError, match=r"trainer\.fit\(federation, datamodule=Digits\(\)\)"):
        make_trainer(1).fit(small_federation(), **source)


def test_no_data_at_all_are_refused():
    """The same error without any data."""
    with pytest.raises(UserError, match="FederatedDataModule"):
        make_trainer(1).fit(small_federation())


def test_sound_settings_pass():
    """One rate for all, or one per client; the smallest legal values."""
    for capacities in ([0.5], [1.0, 0.5, 0.25]):
        settings = {"capacities": capacities, "participation": 0.01, "block_size": 1, "local": whole_batch()}
        federation = small_federation(TINY_MLP, **settings)
        make_trainer(1).fit(federation, datamodule=Blobs((5, 8, 11)))
        assert federation.trainer.global_step == 1


def test_batch_norm_refuses_batches_of_one():
    """A batch of one sample has no statistics."""
    federation = small_federation(partial(CNN, u=2), local=LocalTraining(batch_size=1))
    with pytest.raises(UserError, match="batch_size is 1 and the network has batch norm"):
        make_trainer(1).fit(federation, datamodule=Blobs((5, 8), PICTURES))

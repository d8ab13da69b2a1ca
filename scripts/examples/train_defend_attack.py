# %% [markdown]
# # Train a federation, defend it, attack it
#
# Ten clients own scikit-learn's digits. Two of them train the whole network, eight train half of every layer's
# channels. Open this file as a notebook (VS Code, or `jupytext --to ipynb`), or run it as a program.

# %%
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger

from app import Capacities, FederatedCallback, FederatedModule, LocalTraining, Measurement, audit, load_run
from callbacks import MemDefense, RunRecorder, TranscriptRecorder
from datamodules import Digits

widths, local = Capacities(large=2, small=0.5), LocalTraining(batch_size=16)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}

# %% [markdown]
# ## Training is Lightning's
#
# A round is an epoch. Defenses are callbacks, and any logger gets the metrics of every round.

# %%
federation = FederatedModule(capacities=widths, local=local)
logger = CSVLogger("logs", name="example")
trainer = Trainer(max_epochs=5, callbacks=[MemDefense(gamma=0.9)], logger=logger, **quiet)
trainer.fit(federation, datamodule=Digits())
print(f"server accuracy after {trainer.current_epoch} rounds: {trainer.callback_metrics['server/accuracy']:.2%}")

# %% [markdown]
# ## Attacks
#
# An adversary outside sees the released model. What a curious server would see of single uploads was not recorded here,
# so an attack on uploads would answer "not available".

# %%
result = audit(federation, attacks=["yeom", "lira-offline"], targets=["global"])
print(result.table())
result.roc().savefig("roc.png")
print(result.to_pandas().query("number == 'auc'"))

# %% [markdown]
# ## A run folder
#
# With a `RunRecorder` everything is kept: configuration, metrics, transcript and results. The folder is like that of
# `rampart fit`, so `rampart report runs/example` and `rampart attack runs/example` work on it, too.
#
# A defense, an attack or a recorder of your own overrides a hook. This recorder measures how far every client moves.


# %%
class Movement(FederatedCallback):
    """Mean Euclidean norm of the clients' changes, over all rounds."""

    kind = "recorder"

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_client_update(self, trainer, federation, update):
        self.norms.append(float((update.vector - update.received).norm()))

    def results(self, federation):
        yield Measurement("movement", {"mean norm": sum(self.norms) / len(self.norms), "updates": len(self.norms)})


# %%
federation = FederatedModule(capacities=widths, local=local)
recorders = [Movement(), TranscriptRecorder("runs/example/transcript"), RunRecorder("runs/example")]
trainer = Trainer(max_epochs=5, callbacks=[MemDefense(gamma=0.9), *recorders], logger=False, **quiet)
trainer.fit(federation, datamodule=Digits())

# %%
run = load_run("runs/example")
print(run)
print(run.to_pandas()[["round", "server/accuracy"]])
print(audit(run, attacks=["yeom"]).table())
print("mean score of members:", run.scores("yeom.uploads").scores.mean())

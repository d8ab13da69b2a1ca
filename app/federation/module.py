"""The federation as a LightningModule: a round is an epoch, a block of clients is a batch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from app.common.described import Described, described
from app.common.errors import UserError, raise_all
from app.common.memory import noted, refuse_too_large
from app.common.ranges import Count, NonNegative, Seed, Share
from app.common.renamed import current
from app.common.seeding import derive_key
from app.common.signals import termination_interrupts
from app.common.trust import refuse_foreign
from app.federation.aggregation import FedAvg, ServerOptimizer, ServerOptimizerFactory
from app.federation.all_clients import Newcomers
from app.federation.capacities import Capacities
from app.federation.channels.base import Aggregate, Channel, PlainChannel, UncoveredCells
from app.federation.channels.integer_code import Coding, IntegerCode
from app.federation.checks.federation import (
    defense_problems,
    federation_problems,
    network_problems,
    setting_problems,
    warn_of_defenses,
)
from app.federation.checks.trainer_options import trainer_problems, whole_rounds
from app.federation.ditto import OwnModels
from app.federation.evaluation import Evaluation, Score, ServerEvaluation
from app.federation.execution.client_trainer import LocalContext
from app.federation.execution.distributed import autocast_of
from app.federation.execution.executors import ANOMALIES, Executor, ExecutorKind, available_cores, make_executor
from app.federation.execution.helpers import Helpers
from app.federation.execution.tasks import ClientTask
from app.federation.hooks import RoundHooks, federated_callbacks, overriding, turn
from app.federation.learning import LearningWatch
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.federation.plan import NO_CLIENT, BlockLoader, ClientPool, ClientSampling, Plan
from app.federation.private_coordinates import LabelRows, PersonalCoordinates
from app.federation.promises import warn_of_withheld, withheld
from app.federation.reports import PhaseClock, RoundReport, round_cost, round_metrics
from app.federation.round import Round
from app.federation.scaffold import ControlVariates
from app.federation.submodels import Prefix, SubmodelMethod
from app.federation.transcript import Transcript
from app.models.base import DataShape, ScalableNet
from app.models.cnn import CNN
from app.result import Result
from datamodules.base import FederatedDataModule

DEFAULT_TRAINING = LocalTraining()
DEFAULT_EVALUATION = Evaluation()
NO_NEWCOMERS = Newcomers()

OWN = ("personal", "own_models", "controls")
"""Entries of a checkpoint with what clients keep to themselves."""


class FederatedModule(Described, LightningModule):
    """A federation of clients that train submodels of different widths, and of the server that aggregates them.

    A Lightning epoch is a round, and a batch is a block of clients: the training step trains the clients of a block and
    passes their updates to the channel, and after the last block the server aggregates and steps.

    Attributes:
        net: the server's network.
        space: layout of its flat vector.
        inserted: names of its parameters that the announced network does not have.
        client_pool: the clients, as the server knows them.
        channel: how updates reach the server; a defense may replace it in its `setup`.
        coding: how channels that add up integers make them of updates; a defense may replace it in its `setup`.
        results: what attacks and recorders have found, in order.
        transcript: what adversaries have seen; None where nothing was recorded.
        cache: folder for what attacks can use again in other runs; None to keep nothing.
        progress_log: file that attacks add lines of progress to; None for none.
        shadow_counts: shadow models that attacks have `trained`, and `reused` of those that were kept.
        learning: signs of learning in every round.
        helpers: the other processes of the run, for work that attacks share with them.
    """

    net: ScalableNet
    space: ParameterSpace
    client_pool: ClientPool
    hooks: RoundHooks
    local_context: LocalContext
    _round: Round

    def __init__(
        self,
        net: Callable[[DataShape], ScalableNet] = CNN,
        method: SubmodelMethod | None = None,
        capacities: Capacities | list[Share] | None = None,
        local: LocalTraining = DEFAULT_TRAINING,
        server: ServerOptimizerFactory = FedAvg,
        participation: Share = 1.0,
        sampling: ClientSampling = "fixed",
        weighting: Literal["uniform", "samples"] = "uniform",
        uncovered_cells: UncoveredCells = "keep",
        personal: list[str] | None = None,
        ditto: NonNegative | None = None,
        evaluation: Evaluation = DEFAULT_EVALUATION,
        newcomers: Newcomers = NO_NEWCOMERS,
        executor: ExecutorKind = "auto",
        workers: Count | None = None,
        block_size: Count = 32,
        seed: Seed = 0,
    ) -> None:
        """Set up a federation; networks are built when the data are known.

        Args:
            net: the server's network, built for the data at hand.
            method: how clients' submodels are chosen; by default the first channels of every layer (HeteroFL).
            capacities: how wide a submodel each client trains: `large: 2`, levels, shares, or a plain list with one
                rate in (0, 1] per client or one for all; by default all clients train the whole network (FedAvg).
            local: how clients train.
            server: how the mean of the clients' models becomes the server's next model.
            participation: fraction of the clients that take part in a round, in (0, 1].
            sampling: equally many clients in every round (`fixed`), or each client independently with probability
                `participation` (`poisson`), as client-level differential privacy assumes.
            weighting: clients count equally in the mean, or by their number of training samples.
            uncovered_cells: weights that no client uploaded keep their value (HeteroFL) or become zero (MaPP-FL's
                code).
            personal: shell-style patterns of parameters that stay on the client and are never uploaded: `*` is the
                baseline without federation, `*classifier*` a local head.
            ditto: lambda of Ditto, at least 0: every client trains a model of its own beside the server's, with
                lambda/2 |own - received|^2 in its loss, and never uploads it; without it, clients have none.
            evaluation: what is measured, and how often.
            newcomers: clients that join late, or when the training is over.
            executor: how a block of clients is trained: in worker threads, vectorised, in sequence, or as is fastest.
            workers: worker threads of the `threads` executor; by default one per core.
            block_size: clients per block at most; limits memory, does not change results. On a GPU a vectorised call
                takes no more of them than its free memory holds.
            seed: seed of every random choice.
        """
        super().__init__()
        self.automatic_optimization = False
        self.make_net, self.make_server = net, server
        self.method = method if method is not None else Prefix()
        self.capacities = Capacities.of(capacities)
        self.local, self.evaluation, self.newcomers = local, evaluation, newcomers
        self.participation, self.sampling = participation, sampling
        self.weighting, self.uncovered_cells = weighting, uncovered_cells
        self.personal_patterns, self.ditto = list(personal or []), ditto
        self.executor_kind, self.workers, self.block_size = executor, workers, block_size
        self.seed = seed
        self.channel: Channel = PlainChannel()
        self.coding: Coding = IntegerCode
        self.results: list[Result] = []
        self.transcript: Transcript | None = None
        self.cache: Path | None = None
        self.kept_findings: Mapping[str, Any] = {}
        self.shadow_counts: Counter[str] = Counter()
        self.progress_log: Path | None = None
        self.configuration: dict[str, Any] | None = None
        self.clock = PhaseClock()
        self.learning = LearningWatch()
        self.helpers = Helpers(self)
        self._loaded: dict[str, Any] | None = None
        self.controls: ControlVariates | None = None
        self._concluded = False
        self._prepared = False
        self._executor: Executor | None = None

    # ---- before the first round ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Build the server's network for the data. Callbacks may call it in their `setup`; it runs once."""
        if self._prepared:
            return
        raise_all(federation_problems(self))
        self.data.remove_canaries()  # of another federation
        for callback in federated_callbacks(self.trainer):
            callback.on_data(self)
        self._build(self.data.shape)
        self.client_pool = self._client_pool()
        raise_all(network_problems(self), defense_problems(self))
        if self.local.scaffold:
            self.controls = ControlVariates(self)
            self.controls.load_state_dict((self._loaded or {}).get("controls") or self.controls.state_dict())
        self._server = ServerEvaluation(self.net, self.data, self.evaluation.batch_size)
        self._prepared = True

    def _build(self, shape: DataShape) -> None:
        """Build the server's network, with its initial values or those that were loaded."""
        with torch.random.fork_rng(devices=[]):
            refuse_too_large(lambda: self.make_net(shape))
            # torch.manual_seed would also reseed the GPUs
            torch.default_generator.manual_seed(derive_key(self.seed, "initialisation"))
            net = self._shipped(self.make_net(shape))
        # a checkpoint is read before Lightning converts the module, and a narrower net would round its values
        if self._trainer is not None:
            net = cast(ScalableNet, self.trainer.precision_plugin.convert_module(net))
        self.net = net.to(memory_format=torch.channels_last) if self.local.channels_last else net
        self.space = ParameterSpace(self.net)
        private = [*self.personal_patterns, *self.net.private_names()]
        initial = self.space.read(self.net)
        self.own_models = None if self.ditto is None else OwnModels(initial, self.ditto)
        self.net.mask_private(used=0)
        self.personal = PersonalCoordinates(self.space.matching(private), initial, self.space.read(self.net))
        self.net.mask_private(self.newcomers.dictionary)
        if self._loaded is not None:
            self.net.load_state_dict(self._loaded["net"])
            self.on_load_checkpoint(self._loaded)

    def _shipped(self, net: ScalableNet) -> ScalableNet:
        """The network that clients get: the announced one, if no callback plays a server that changes it."""
        announced = {name for name, _ in net.named_parameters()}
        for callback in federated_callbacks(self.trainer) if self._trainer is not None else ():
            net = callback.ships(self, net)
        self.inserted = frozenset(name for name, _ in net.named_parameters() if name not in announced)
        return net

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of the server's network for normalised images (batch, channels, height, width)."""
        return cast(Tensor, self.net(images))

    @property
    def data(self) -> FederatedDataModule:
        return cast(FederatedDataModule, self.trainer.datamodule)  # type: ignore[attr-defined]

    def configure_callbacks(self) -> list[Callback]:
        """Check the trainer's options before Lightning refuses some without naming a remedy, and serve attacks.

        Callbacks are set up in the order of their kinds: attacks tap the channel that defenses have put in place. Where
        a callback wants a transcript and none is recorded, it is recorded to a temporary folder.
        """
        from app.federation.transcript_recorder import TranscriptRecorder  # which is about federations

        raise_all(trainer_problems(self), setting_problems(self))
        whole_rounds(self.trainer.callbacks)  # type: ignore[attr-defined]
        self.trainer.callbacks.sort(key=turn)  # type: ignore[attr-defined]
        callbacks = federated_callbacks(self.trainer)
        wanted = [*overriding(callbacks, "on_transcript"), *overriding(callbacks, "on_round_kept")]
        recorded = any(isinstance(callback, TranscriptRecorder) for callback in callbacks)
        return [TranscriptRecorder()] if wanted and not recorded else []

    def setup(self, stage: str) -> None:
        self.prepare()

    def configure_optimizers(self) -> ServerOptimizer:
        return self.make_server(self.net.parameters())

    def on_fit_start(self) -> None:
        self.data.to(self.device)
        self.hooks = RoundHooks(self.trainer, self)
        self.results, self._concluded = [], False
        warn_of_defenses(self)
        warn_of_withheld(self)
        self._withheld = withheld(self)
        self._learning_rates = self.local.learning_rates(self.rounds)
        self.local_context = self._context()
        anomalies = [ANOMALIES] if self.trainer._detect_anomaly else []
        obstacles = [*self.hooks.vectorisation_obstacles(), *anomalies]
        self._executor = make_executor(self.executor_kind, self.local_context, self.worker_count, obstacles)
        if self.own_models is not None:
            self.own_models.start(self.local_context, self.executor_kind, self.worker_count, anomalies)

    def teardown(self, stage: str) -> None:
        self.channel.end()
        if self._prepared and self.own_models is not None:
            self.own_models.close()
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def round_loader(self) -> BlockLoader:
        """This process's clients of the current round, in blocks; every round has equally many blocks."""
        return BlockLoader(self._blocks, len(self._blocks()))

    def evaluation_loader(self) -> BlockLoader:
        """The batches of the common test set that this process evaluates, all in one step."""
        return BlockLoader(lambda: [self._server.share(self.global_rank, self.trainer.world_size)], 1)

    def on_train_start(self) -> None:
        del self.learning.rounds[self.current_epoch :]  # of a training before this one

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        self.clock.start()
        number = self.current_epoch
        if self.newcomers.dictionary < 1 and self.client_pool.joined(number):
            self.net.mask_private()
        plan, theta = self.plan_of(number), self.space.read(self.net)
        self._server.score = Score()
        self.local_context.shared_scores.clear()
        due = self.evaluation.due(number, self.rounds)
        self._round = Round(self, plan, theta, self._learning_rates[number], due)
        self.hooks.call("on_round_start", plan)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Train a block of clients and pass their updates to the channel; after the last block, aggregate."""
        clients = [client for client in batch.tolist() if client != NO_CLIENT and not self.hooks.withdrawn(client)]
        results = self.executor.run(self._round.task(client) for client in clients)
        tasks: list[ClientTask] = []  # of the clients that train models of their own, too
        with noted(f"round {self.current_epoch + 1} of a network with {self.space.size:,} parameters"):
            while True:
                with self.clock.phase("clients"):
                    trained = next(results, None)
                if trained is None:
                    break
                self._round.accept(trained)
                if self.own_models is not None and not trained.refusal:
                    tasks.append(trained.task)
            with self.clock.phase("clients"):
                if self.own_models is not None:
                    self.own_models.train(tasks)
            if self.trainer.is_last_batch:
                self._move_server(self._round.close())

    def _move_server(self, aggregate: Aggregate) -> None:
        with self.clock.phase("server"):
            optimizer: Any = self.optimizers()
            moved = optimizer.step(theta=self.theta, aggregate=aggregate, trainable=self.space.trainable)
            self.space.write(self.net, self.personal.untouched(self.theta, moved))

    @property
    def plan(self) -> Plan:
        return self._round.plan

    @property
    def theta(self) -> Tensor:
        """The server's flat vector at the start of the current round."""
        return self._round.theta

    @property
    def own_values(self) -> PersonalCoordinates:
        """What clients have in the place of the server's values in the models that they use, and never upload."""
        return self.personal if self.own_models is None else self.own_models.values

    @property
    def server_is_untrained(self) -> bool:
        """Whether the server's own model means nothing: clients keep everything, or the running statistics (FedBN)."""
        return self.personal.everything or bool(self.personal.mask[self.space.trainable :].any())

    @property
    def clients_done(self) -> int:
        return min(len(self._round.reports) * self.trainer.world_size, len(self.plan.participants))

    @property
    def report(self) -> RoundReport:
        seconds, cpu_seconds = self.clock.reading(), self.clock.cpu_reading()
        return RoundReport(self.plan.round + 1, tuple(self._round.reports), self._server.score, seconds, cpu_seconds)

    def score_of_members(self) -> Score:
        """The server's model on all training data; empty where it is untrained."""
        return Score() if self.server_is_untrained else self._server.of_members(autocast_of(self.trainer))

    # ---- the server's evaluation -----------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.data.to(self.device)  # already there, except when validating without fitting
        self._server.start()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        if self.server_is_untrained:
            return
        with self.clock.phase("evaluate"):
            self._server.add(
                batch, self._executor.map if self._executor is not None else map, autocast_of(self.trainer)
            )

    def on_validation_epoch_end(self) -> None:
        """Add up the processes' scores, and log them so that early stopping can monitor `server/accuracy`."""
        score = self._server.finish()
        if score.total:
            scores = {"server/accuracy": score.accuracy, "server/loss": score.mean_loss}
            if self.trainer.state.fn == "validate":
                self.log_dict(scores, batch_size=1)
            else:  # rounds log them together with everything else
                self._offer(scores)

    def on_train_epoch_end(self) -> None:
        """Pass the metrics of the round to callbacks, which may monitor them, and to loggers what they may get."""
        report = self.report
        metrics = round_metrics(report, self.data.groups, self.widths) | self.hooks.measurements()
        costs = round_cost(report) | self.hooks.costs()
        tested = len(self.data.common_test[: self.evaluation.limit])
        self.learning.observe(report, bool(self.personal), tested)
        self.hooks.call("on_round_end", metrics, costs)
        logged = {name: value for name, value in metrics.items() if name not in self._withheld}
        for logger in self.trainer.loggers:
            logger.log_metrics(logged | {f"cost/{name}": cost for name, cost in costs.items()}, step=report.round)
        self._offer({name: float(value) for name, value in metrics.items() if not name.startswith("server/")})

    def _offer(self, metrics: Mapping[str, float]) -> None:
        """Let callbacks monitor metrics, as `log_dict` would, whose bookkeeping takes longer than a small round."""
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})

    def on_train_end(self) -> None:
        """Conclude the run while net and data are on the device: before `on_fit_end` the net is moved to the CPU."""
        self._conclude()

    def on_fit_end(self) -> None:
        """Conclude a run that had no round left to train: Lightning does not start such a training."""
        if not self._concluded:
            self.to(self.data.store.device)  # Lightning has moved the module away already
            self._conclude()

    def _conclude(self) -> None:
        if self.trainer.received_sigterm:
            raise SIGTERMException
        if not self.trainer.interrupted:
            self._concluded = True
            for warning in self.learning.warnings(self) if self.trainer.is_global_zero else ():
                warnings.warn(warning, stacklevel=2)
            with termination_interrupts():
                self.hooks.conclude()

    # ---- checkpoint ------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["personal"] = self.personal.state_dict()
        if self.own_models is not None:
            checkpoint["own_models"] = self.own_models.values.state_dict()
        if self.controls is not None:
            checkpoint["controls"] = self.controls.state_dict()
        checkpoint["learning"] = self.learning.state_dict()
        settings = self.configuration or described(self)["init_args"]
        checkpoint["federation"] = {"model": settings, "shape": asdict(self.data.shape)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.load_own(checkpoint)
        if self.controls is not None:
            self.controls.load_state_dict(checkpoint["controls"])
        self.learning.load_state_dict(checkpoint.get("learning", ()))

    def load_own(self, checkpoint: dict[str, Any]) -> None:
        """Load from a checkpoint what clients keep to themselves."""
        self.personal.load_state_dict(checkpoint["personal"])
        if self.own_models is not None:
            self.own_models.values.load_state_dict(checkpoint.get("own_models", {}))

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, map_location: Any = "cpu", *, trust: bool = False, **settings: Any
    ) -> Self:
        """The federation of a checkpoint with its trained network: to predict with, to validate, or to train further.

        Nothing but tensors and plain data is read from the file.

        Args:
            checkpoint_path: a file in the `checkpoints` of a run, or one that `ModelCheckpoint` has written.
            map_location: device of the network.
            trust: let the checkpoint name classes that do not come with this program, whose code then runs.
            settings: arguments of the constructor that replace those of the checkpoint, such as `net` where the
                checkpoint names a function that cannot be imported.
        """
        checkpoint = torch.load(checkpoint_path, map_location=map_location, weights_only=True)
        stored = checkpoint.get("federation")
        if stored is None:
            raise UserError.of(
                f"{checkpoint_path} says nothing about its federation",
                "the network cannot be built: the checkpoint is of another program, or of version 0.2 or earlier",
                "build the federation, and pass the file to Trainer.fit or Trainer.validate as ckpt_path",
            )
        config = {name: value for name, value in current(stored["model"]).items() if name not in settings}
        if not trust:
            refuse_foreign(config, checkpoint_path)
        federation = cls(**_constructed(cls, config, settings))
        prefix = "net."
        state = checkpoint["state_dict"].items()
        net = {name.removeprefix(prefix): value for name, value in state if name.startswith(prefix)}
        federation._loaded = {"net": net, **{name: checkpoint[name] for name in OWN if name in checkpoint}}
        federation._build(DataShape(**stored["shape"]))
        return federation.to(map_location if isinstance(map_location, (str, torch.device)) else "cpu").eval()

    # ---- helpers ---------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Rounds of the whole run; 1,000, as in Lightning, for a trainer that is not to train."""
        planned = self.trainer.max_epochs
        return planned if planned is not None else 1000

    @property
    def executor_name(self) -> str:
        """How clients are trained, for display."""
        return "nobody yet" if self._executor is None else self._executor.description

    @property
    def worker_count(self) -> int:
        """Worker threads of this process: the number set, or its share of the cores."""
        cores = available_cores() // (self.trainer.num_devices if self.device.type == "cpu" else 1)
        return self.workers or max(1, cores)

    @property
    def executor(self) -> Executor:
        assert self._executor is not None
        return self._executor

    @property
    def learning_rate(self) -> float:
        """Learning rate of the current round, or of the last one after the training, before `local.lr_factors`."""
        return self._learning_rates[min(self.current_epoch, len(self._learning_rates) - 1)]

    @property
    def server(self) -> ServerOptimizer:
        """The server's optimiser without Lightning's wrapper."""
        return cast(ServerOptimizer, self.optimizers(use_pl_optimizer=False))

    @cached_property
    def label_rows(self) -> LabelRows:
        """The class of each row of the classifier; computed only where clients mask labels."""
        return LabelRows(self.space, self.data.shape.classes)

    @property
    def widths(self) -> tuple[float, ...]:
        """All width rates that clients may train, widest first."""
        return self.method.rates(self.client_pool.capacities)

    def plan_of(self, round_: int) -> Plan:
        """The plan of any round (0-based)."""
        trained = self.local.samples_trained
        return Plan(round_, self.client_pool, self.method, self.space, self.device, trained)

    def _blocks(self) -> tuple[Tensor, ...]:
        share = self.plan_of(self.current_epoch).share(self.global_rank, self.trainer.world_size)
        return torch.tensor(share, dtype=torch.long).split(self.block_size)

    def _client_pool(self) -> ClientPool:
        sizes = tuple(self.data.sizes)
        rates = self.capacities.assign(sizes, self.seed)
        absent = self.newcomers.chosen(self.data.groups, self.seed)
        return ClientPool(
            sizes,
            rates,
            self.participation,
            self.seed,
            self.capacities.redraw,
            self.sampling,
            absent,
            self.newcomers.joining,
            self.newcomers.dictionary,
        )

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        return cast(Tensor, self.trainer.strategy.reduce(tensor, reduce_op="sum"))

    def _context(self) -> LocalContext:
        return LocalContext(
            prototype=self.net,
            store=self.data.store,
            common_test=self.data.common_test[: self.evaluation.limit],
            augment=self.data.augmented if self.data.augment is not None else None,
            local=self.local,
            evaluation=self.evaluation,
            seed=self.seed,
            needs_received_loss=self.server.needs_received_loss,
            loss_hooks=self.hooks.client_hooks("client_loss"),
            penalty_hooks=self.hooks.client_hooks("client_penalty"),
            start_hooks=self.hooks.client_hooks("on_client_start"),
            end_hooks=self.hooks.client_hooks("on_client_end"),
            widths=self.method.local_widths,
            precision=autocast_of(self.trainer),
        )


def _constructed(kind: type, plain: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the federation's constructor from plain data, and those given."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "model", fail_untyped=False, sub_configs=True)
    try:
        objects = parser.instantiate_classes(parser.parse_object({"model": plain}))
    except (ArgumentError, ValueError) as error:
        raise UserError.of(
            f"the federation of the checkpoint cannot be built: {error}",
            "there is no network to load its values into",
            "pass what cannot be imported as an argument, such as net=...",
        ) from error
    return {**objects.model._given[1], **given}

"""Work that the first process shares with the others, which would otherwise wait until it has ended."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as distributed

from app.common.dealing import deal
from app.common.errors import Problem, UserError, raise_all

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

Item = TypeVar("Item")
Made = TypeVar("Made")

Work = Callable[["FederatedModule", Sequence[Item]], list[Made]]
"""Makes one result of every item on any process, given that process's federation. It is pickled, and so are items."""

PATIENCE = timedelta(days=30)
"""How long the others wait for the first process: an attack may take hours between two requests."""


@dataclass(frozen=True)
class _Outcome:
    """Results of one process, or why it has none."""

    made: list[Any]
    problems: tuple[Problem, ...] = ()  # of a `UserError`
    failure: str = ""  # traceback of an unexpected error


class Helpers:
    """The processes of a run while the first one works, and the others do what it shares with them."""

    def __init__(self, federation: FederatedModule) -> None:
        self._federation = federation
        self._group: Any = None
        self._leading = False

    @property
    def available(self) -> bool:
        """Whether other processes wait for work of this one."""
        return self._leading

    def run(self, work: Callable[[], None]) -> None:
        """Call `work` on the first process, while the others do what it shares; all processes call this.

        Where it fails on the first process, the others fail too instead of waiting for it.
        """
        trainer = self._federation.trainer
        if trainer.world_size == 1:
            work()
            return
        if self._group is None:  # messages of their own, on the CPU, without the time limit of gradients
            self._group = distributed.new_group(backend="gloo", timeout=PATIENCE)
        if trainer.is_global_zero:
            self._lead(work)
        else:
            self._serve()

    def share(self, work: Work[Item, Made], items: Sequence[Item], costs: Sequence[float]) -> list[Made]:
        """Results of `work` for all items, in their order, made by all processes; items are dealt by their costs.

        Raises:
            UserError: as any process has raised it.
            RuntimeError: where another process has failed, with its traceback.
        """
        parts = deal(costs, self._federation.trainer.world_size)
        shares = [[items[place] for place in part] for part in parts]
        self._send((work, shares))
        outcomes = self._gathered(self._outcome(work, shares[0]))
        for rank, outcome in enumerate(outcomes):
            raise_all(outcome.problems)
            if outcome.failure:
                raise RuntimeError(f"process {rank} of the run has failed:\n{outcome.failure}")
        made: dict[int, Made] = {}
        for part, outcome in zip(parts, outcomes, strict=True):
            made |= zip(part, outcome.made, strict=True)
        return [made[place] for place in range(len(items))]

    def _lead(self, work: Callable[[], None]) -> None:
        self._leading = True
        try:
            work()
        except BaseException:
            with contextlib.suppress(Exception):  # where another process is gone, there is nobody to tell
                self._send("failed")
            raise
        finally:
            self._leading = False
        self._send("finished")

    def _serve(self) -> None:
        federation = self._federation
        while (request := self._received()) != "finished":
            if request == "failed":
                raise RuntimeError("the first process of the run has failed")
            work, shares = request
            self._gathered(self._outcome(work, shares[federation.global_rank]))

    def _outcome(self, work: Work[Item, Made], items: Sequence[Item]) -> _Outcome:
        try:
            return _Outcome(work(self._federation, items) if items else [])
        except UserError as error:
            return _Outcome([], error.problems)
        except Exception:
            return _Outcome([], failure=traceback.format_exc())

    def _send(self, message: Any) -> None:
        distributed.broadcast_object_list([message], src=0, group=self._group)

    def _received(self) -> Any:
        message: list[Any] = [None]
        distributed.broadcast_object_list(message, src=0, group=self._group)
        return message[0]

    def _gathered(self, outcome: _Outcome) -> list[_Outcome]:
        """Outcomes of all processes by rank, on the first; nothing on the others."""
        federation = self._federation
        first = federation.trainer.is_global_zero
        outcomes: list[Any] | None = [None] * federation.trainer.world_size if first else None
        distributed.gather_object(outcome, outcomes, dst=0, group=self._group)
        return cast(list[_Outcome], outcomes or [])

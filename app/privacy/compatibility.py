"""Which defenses, attacks and settings go together: the rules as one table, and the check that applies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from app.common.errors import Problem
from app.privacy.traits import Component, Trait

Severity = Literal["error", "warning", "note"]
"""Refuse the run, warn before it, or note that the combination is sound."""


@dataclass(frozen=True)
class Rule:
    """What is wrong (or remarkable) about two traits in one run. Texts may use {first} and {second}."""

    code: str  # identifier, for tests and for searching
    severity: Severity
    first: Trait  # a trait of one component
    second: Trait  # ... and a trait of another one; both may be the same trait
    consequence: str
    remedy: str
    cause: str
    ordered: bool  # whether it only applies where the first component acts before the second on uploads

    def applies(self, first: Component, second: Component) -> bool:
        """Whether the rule holds for two components in this order."""
        if self.first not in first.traits or self.second not in second.traits:
            return False
        placed = first.place is not None and second.place is not None and first.place < second.place
        return placed or not self.ordered


@dataclass(frozen=True)
class Clash:
    """A rule that applies to a run, and its texts with the names of the components."""

    rule: Rule
    problem: Problem


def clashes(components: Sequence[Component]) -> Iterator[Clash]:
    """Every rule that applies to a run, in the order of the table; each pair of components once."""
    for rule in RULES:
        for pair in combinations(components, 2):
            match = next((two for two in (pair, pair[::-1]) if rule.applies(*two)), None)
            if match is not None:
                names = {"first": match[0].name, "second": match[1].name}
                texts = (text.format(**names) for text in (rule.cause, rule.consequence, rule.remedy))
                yield Clash(rule, Problem(*texts))


def _rule(
    match: tuple[str, Severity, Trait, Trait],
    consequence: str,
    remedy: str = "",
    cause: str = "{second} under {first}",
    ordered: bool = False,
) -> Rule:
    return Rule(*match, consequence, remedy, cause, ordered)


_GROUP_NORM = "set --model.net.norm group (its groups have a fixed number of channels), or use a network without norm"
_NO_MASKS = "turn it off: --model.local.mask_labels false"
_LATER = "let {second} act first: --defense_order"
# texts that several rules share: consequence, remedy, cause
_STATISTICS = (
    "clients would send statistics of their data without noise",
    "set --model.net.statistics batch or --model.net.norm group",
    "{first} with a network that keeps running statistics",
)
_LABEL_MASKS = (
    "which classes a client has is private data, and the rows it sends would tell",
    _NO_MASKS,
)
_AFTER_CLIPPING = (
    "it would move an update away from the norm that {first} has clipped it to, so the guarantee would not hold",
    _LATER,
    "{second} after {first}",
)
_BY_DATA = (
    "which weights a client sends depends on its data, and so would the denominators",
    "use a variant that sends all weights: --defenses.NAME.variant zero",
)
_BY_LOSS = (
    "clients would count by their loss, so no bound holds on the influence of one",
    "set --model.server FedAvg",
)
_TWO_UNITS = (
    "their epsilons mean different things",
    "report both and do not add them",
    "{first} and {second} both add noise, for different privacy units",
)
_EARLY_STOPPING = (
    "when the run ends is decided by looking at private data, which epsilon does not count",
    "fix the number of rounds with --trainer.max_epochs",
)
_REFUSALS = (
    "whether a client trains is decided by looking at its private data, which epsilon does not count",
    "set --defenses.NAME.gradient_suppression null, the one check that looks at them",
)

_NOTHING_SENT = (
    "it acts on what clients send, so nothing would be defended by it",
    "leave {second} out, or choose a method under which clients send weights (--model.personal)",
    "{second} where {first}",
)
_NOTHING_MEASURED = (
    "nothing leaves a client, so there is nothing to measure",
    "leave {second} out, or choose a method under which clients send weights (--model.personal)",
    "{second} where {first}",
)
_CANARIES: tuple[Trait, ...] = ("sample-canaries", "client-canaries")
_ON_UPLOADS: tuple[Trait, ...] = (
    "client-dp",
    "sum-dp",
    "own-noise",
    "channel",
    "pruned-uploads",
    "kept-cells",
    "chosen-cells",
)
_OWN_MODELS = (
    "the clients' own models are trained without clipping and noise, since they are never sent: epsilon holds for what "
    "is uploaded, and not for a client's own model, should it be handed on",
)
_CONTROLS = (
    "control variates are made of what was uploaded, after clipping and noise, or of the noised mean: they are "
    "post-processing, and epsilon stays as it is",
)

_PROMISES: tuple[Trait, ...] = ("sample-dp", "client-dp", "upload-dp")

RULES: tuple[Rule, ...] = (
    *(_rule((f"nothing-sent-{trait}", "error", "nothing-sent", trait), *_NOTHING_SENT) for trait in _ON_UPLOADS),
    *(_rule((f"nothing-sent-{trait}", "error", "nothing-sent", trait), *_NOTHING_MEASURED) for trait in _CANARIES),
    _rule(
        ("channel-client-canaries", "error", "channel", "client-canaries"),
        "canary clients have no part in the keys of the others, so the sum could not be opened with their updates",
        "leave {first} out of this run: it changes nothing that those who see the model can measure",
        cause="{second} under {first}",
    ),
    _rule(
        ("loss-weights-client-canaries", "error", "loss-weights", "client-canaries"),
        "canary clients have no data, and so no loss to be weighed by",
        "set --model.server FedAvg",
        cause="{second} with {first}",
    ),
    _rule(
        ("nothing-sent-control-variates", "error", "nothing-sent", "control-variates"),
        "there would be no uploads to make control variates of",
        "set --model.local.scaffold false, or leave out --model.personal",
        cause="{second} where {first}",
    ),
    _rule(
        ("unreadable-mean-control-variates", "error", "unreadable-mean", "control-variates"),
        "the server makes its control variate of the mean of the uploads, which it could not read",
        "use secure aggregation, or set --model.local.scaffold false",
    ),
    _rule(
        ("loss-weights-control-variates", "error", "loss-weights", "control-variates"),
        "the mean of the uploads would be weighted, but that of the control variates is not",
        "set --model.server FedAvg, or --model.local.scaffold false",
        cause="{second} with {first}",
    ),
    _rule(
        ("label-masks-control-variates", "error", "label-masks", "control-variates"),
        "how many clients stand behind the control variate of a classifier's row would depend on their data",
        _NO_MASKS,
        cause="{second} with {first}",
    ),
    _rule(
        ("nothing-sent-own-models", "error", "nothing-sent", "own-models"),
        "the server's model never moves, and the clients' own models would be pulled towards the initial one",
        "leave out --model.ditto, or --model.personal",
        cause="{second} where {first}",
    ),
    _rule(
        ("two-channels", "error", "channel", "channel"),
        "only one of them would be used",
        "keep one of them",
        cause="{first} and {second} both replace the way in which updates reach the server",
    ),
    _rule(
        ("channel-chosen-cells", "error", "channel", "chosen-cells"),
        "which weights a client sends depends on its data, so their sums could not be divided by public counts, "
        "and masks would not cancel",
        "use a variant that sends all weights: --defenses.NAME.variant zero",
    ),
    _rule(
        ("sample-dp-batch-norm", "error", "sample-dp", "batch-norm"),
        "batch norm shares statistics between the samples of a batch, so the guarantee would not hold",
        _GROUP_NORM,
        cause="{first} with a network that has batch norm",
    ),
    _rule(("client-dp-running-statistics", "error", "client-dp", "running-statistics"), *_STATISTICS),
    _rule(("upload-dp-running-statistics", "error", "upload-dp", "running-statistics"), *_STATISTICS),
    _rule(("upload-dp-label-masks", "error", "upload-dp", "label-masks"), *_LABEL_MASKS),
    _rule(("sample-dp-label-masks", "error", "sample-dp", "label-masks"), *_LABEL_MASKS),
    _rule(
        ("client-dp-label-masks", "error", "client-dp", "label-masks"),
        "which rows a client sends depends on its data, and so would the denominators",
        _NO_MASKS,
    ),
    _rule(("client-dp-chosen-cells", "error", "client-dp", "chosen-cells"), *_BY_DATA),
    _rule(("sum-dp-chosen-cells", "error", "sum-dp", "chosen-cells"), *_BY_DATA),
    _rule(("sum-dp-label-masks", "error", "sum-dp", "label-masks"), *_LABEL_MASKS),
    _rule(
        ("sum-dp-running-statistics", "error", "sum-dp", "running-statistics"),
        "statistics would be clipped and get noise with the weights, and a running variance could become negative",
        *_STATISTICS[1:],
    ),
    _rule(
        ("sum-dp-client-dp", "error", "sum-dp", "client-dp"),
        "both clip updates and make noise for whole clients, so that there would be twice the noise",
        "keep one of them",
        cause="{first} and {second}",
    ),
    _rule(
        ("sample-dp-mixes-samples", "error", "sample-dp", "mixes-samples"),
        "a gradient would depend on two samples, so clipping it would not bound the influence of one",
        "leave {second} out",
    ),
    _rule(("client-dp-loss-weights", "error", "client-dp", "loss-weights"), *_BY_LOSS),
    _rule(("sum-dp-loss-weights", "error", "sum-dp", "loss-weights"), *_BY_LOSS),
    _rule(
        ("sample-dp-loss-weights", "error", "sample-dp", "loss-weights"),
        "clients would send their loss on private data without noise",
        "set --model.server FedAvg",
    ),
    _rule(
        ("sample-dp-ordered-dropout", "error", "sample-dp", "ordered-dropout"),
        "gradients of single samples are not available inside the narrower networks",
        "set --model.method.draw round, or choose another method",
        cause="{first} with a method that draws narrower networks step by step",
    ),
    _rule(
        ("pruned-then-partial-noise", "error", "pruned-uploads", "partial-noise"),
        "the weights without noise would show which ones were zeroed",
        _LATER,
        cause="{first} before {second}, which does not noise every weight",
        ordered=True,
    ),
    _rule(
        ("chosen-then-noise", "error", "chosen-cells", "own-noise"),
        "which weights are sent is itself a release without noise",
        "use a variant that sends all weights, such as --defenses.NAME.variant zero, or let {second} act first",
        cause="{first} sends only some weights, chosen by looking at the data, and {second} adds noise to their values",
        ordered=True,
    ),
    _rule(("clipped-then-pruned", "error", "client-dp", "pruned-uploads"), *_AFTER_CLIPPING, ordered=True),
    _rule(("clipped-then-noise", "error", "client-dp", "own-noise"), *_AFTER_CLIPPING, ordered=True),
    _rule(
        ("fixed-participation", "warning", "sampled-client-dp", "fixed-participation"),
        "its accountant assumes that every client takes part by a coin of its own, so epsilon is not proved",
        "set --model.sampling poisson",
        cause="{first} with a fixed number of participants in every round",
    ),
    _rule(("two-units", "warning", "sample-dp", "nominal-dp"), *_TWO_UNITS),
    _rule(("two-units-client", "warning", "sample-dp", "client-dp"), *_TWO_UNITS),
    _rule(("two-units-sum", "warning", "sample-dp", "sum-dp"), *_TWO_UNITS),
    _rule(
        ("dp-local-adversary", "error", "sample-dp", "local-adversary"),
        "its attack network learns from all samples without noise and steers the gradient of every other sample, "
        "so clipping each gradient would not bound the influence of one sample",
        "leave {second} out",
    ),
    _rule(("dp-early-stopping", "warning", "sample-dp", "stops-early"), *_EARLY_STOPPING),
    _rule(("client-dp-early-stopping", "warning", "client-dp", "stops-early"), *_EARLY_STOPPING),
    _rule(("sum-dp-early-stopping", "warning", "sum-dp", "stops-early"), *_EARLY_STOPPING),
    _rule(("upload-dp-early-stopping", "warning", "upload-dp", "stops-early"), *_EARLY_STOPPING),
    _rule(("sample-dp-refusals", "warning", "sample-dp", "refuses-by-data"), *_REFUSALS),
    _rule(("client-dp-refusals", "warning", "client-dp", "refuses-by-data"), *_REFUSALS),
    _rule(("sum-dp-refusals", "warning", "sum-dp", "refuses-by-data"), *_REFUSALS),
    _rule(("upload-dp-refusals", "warning", "upload-dp", "refuses-by-data"), *_REFUSALS),
    _rule(
        ("pruning-before-dp-noise", "warning", "pruned-uploads", "nominal-dp"),
        "the zeros get noise like all weights, so that they do not arrive as zeros",
        "let {second} act first (--defense_order) to see the zeros' own effect",
        cause="{first} before {second}",
        ordered=True,
    ),
    _rule(
        ("channel-label-masks", "warning", "channel", "label-masks"),
        "the rows that a client sends tell which classes it has, however well their values are hidden",
        _NO_MASKS,
    ),
    _rule(
        ("channel-client-dp", "warning", "channel", "client-dp"),
        "the noise is added to the sum once it can be read, so any reader of sums (the server under masks, all "
        "clients under encryption) sees it without noise, and epsilon holds against everybody else only",
        "trust them, or let clients add noise themselves with DPSGD",
        cause="{second} over {first}",
    ),
    _rule(
        ("channel-own-noise", "note", "channel", "own-noise"),
        "every client adds all the noise it needs by itself, although only sums come to light: its epsilon holds "
        "for the single update and does not count that it is hidden",
    ),
    _rule(
        ("channel-pruned-uploads", "note", "channel", "pruned-uploads"),
        "zeros are hidden in the sums, so nobody can see which ones they are and refill them client by client",
    ),
    _rule(
        ("channel-hidden-choice", "note", "channel", "hidden-choice"),
        "plain uploads would show which factors a client uses, since those that it uses move; in the sums nobody "
        "sees whose they are",
    ),
    *(_rule((f"{trait}-control-variates", "note", trait, "control-variates"), *_CONTROLS) for trait in _PROMISES),
    _rule(
        ("channel-control-variates", "note", "channel", "control-variates"),
        "the server works the sum of the control variates out of the sum of the uploads: no second upload could "
        "show more",
    ),
    *(_rule((f"{trait}-own-models", "note", trait, "own-models"), *_OWN_MODELS) for trait in _PROMISES),
    _rule(
        ("client-dp-sample-canaries", "note", "client-dp", "sample-canaries"),
        "the claim is about clients, so that what is measured per sample stands beside no claim",
        cause="{second} under {first}",
    ),
    _rule(
        ("dp-then-pruning", "note", "sample-dp", "pruned-uploads"),
        "zeroing is post-processing of what is already private: epsilon stays as it is",
        cause="{second} after {first}",
    ),
)
"""Checked before any training, all at once."""

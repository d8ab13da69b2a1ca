"""Which defenses, attacks and settings go together: the rules as one table, and the check that applies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.errors import Problem
from app.privacy.traits import Component, Trait

Severity = Literal["error", "warning", "note"]
"""Refuse the run, warn before it, or tell that the combination is sound."""


@dataclass(frozen=True)
class Rule:
    """What is wrong (or remarkable) about two traits in one run. Texts may use {first} and {second}.

    Attributes:
        code: short name, for tests and for searching.
        severity: what happens.
        first: a trait of one part ...
        second: ... and a trait of another part; both may be the same trait.
        ordered: whether it only applies where the first part acts before the second on the way up.
        cause: what was found.
        consequence: what it would lead to.
        remedy: ways out.
    """

    code: str
    severity: Severity
    first: Trait
    second: Trait
    cause: str
    consequence: str
    remedy: str = ""
    ordered: bool = False


@dataclass(frozen=True)
class Clash:
    """A rule that applies to a run.

    Attributes:
        rule: the rule.
        problem: its texts, with the names of the parts.
    """

    rule: Rule
    problem: Problem


def clashes(parts: Sequence[Component]) -> Iterator[Clash]:
    """Every rule that applies to a run, in the order of the table; each pair of parts once."""
    for rule in RULES:
        for first, second in _pairs(parts, rule):
            names = {"first": first.name, "second": second.name}
            texts = (text.format(**names) for text in (rule.cause, rule.consequence, rule.remedy))
            yield Clash(rule, Problem(*texts))


def _pairs(parts: Sequence[Component], rule: Rule) -> Iterator[tuple[Component, Component]]:
    for number, one in enumerate(parts):
        for other in parts[number + 1 :]:
            found = [pair for pair in ((one, other), (other, one)) if _applies(rule, *pair)]
            yield from found[:1]


def _applies(rule: Rule, first: Component, second: Component) -> bool:
    if rule.first not in first.traits or rule.second not in second.traits:
        return False
    if not rule.ordered:
        return True
    return first.place is not None and second.place is not None and first.place < second.place


_GROUP_NORM = "set --model.net.norm group (its groups have a fixed number of channels), or use a network without norm"
_NO_MASKS = "turn it off: --model.local.mask_labels false"
_LATER = "let {second} act first: --defense_order"

RULES: tuple[Rule, ...] = (
    Rule(
        "two-channels",
        "error",
        "channel",
        "channel",
        "{first} and {second} both replace the way in which updates reach the server",
        "only one of them would be used",
        "keep one of them",
    ),
    Rule(
        "channel-chosen-cells",
        "error",
        "channel",
        "chosen-cells",
        "{second} under {first}",
        "which weights a client sends depends on its data, so their sums could not be divided by public counts, and "
        "masks would not cancel",
        "use a variant that sends all weights: --defenses.NAME.variant zero",
    ),
    Rule(
        "sample-dp-batch-norm",
        "error",
        "sample-dp",
        "batch-norm",
        "{first} with a network that has batch norm",
        "batch norm shares statistics between the samples of a batch, so the guarantee would not hold",
        _GROUP_NORM,
    ),
    Rule(
        "client-dp-running-statistics",
        "error",
        "client-dp",
        "running-statistics",
        "{first} with a network that keeps running statistics",
        "clients would send statistics of their data without noise",
        "set --model.net.statistics batch or --model.net.norm group",
    ),
    Rule(
        "upload-dp-running-statistics",
        "error",
        "upload-dp",
        "running-statistics",
        "{first} with a network that keeps running statistics",
        "clients would send statistics of their data without noise",
        "set --model.net.statistics batch or --model.net.norm group",
    ),
    Rule(
        "upload-dp-label-masks",
        "error",
        "upload-dp",
        "label-masks",
        "{second} under {first}",
        "which classes a client has is private data, and the rows it sends would tell",
        _NO_MASKS,
    ),
    Rule(
        "sample-dp-label-masks",
        "error",
        "sample-dp",
        "label-masks",
        "{second} under {first}",
        "which classes a client has is private data, and the rows it sends would tell",
        _NO_MASKS,
    ),
    Rule(
        "client-dp-label-masks",
        "error",
        "client-dp",
        "label-masks",
        "{second} under {first}",
        "which rows a client sends depends on its data, and so would the denominators",
        _NO_MASKS,
    ),
    Rule(
        "client-dp-chosen-cells",
        "error",
        "client-dp",
        "chosen-cells",
        "{second} under {first}",
        "which weights a client sends depends on its data, and so would the denominators",
        "use a variant that sends all weights: --defenses.NAME.variant zero",
    ),
    Rule(
        "sample-dp-mixes-samples",
        "error",
        "sample-dp",
        "mixes-samples",
        "{second} under {first}",
        "a gradient would depend on two samples, so clipping it would not bound the influence of one",
        "leave {second} out",
    ),
    Rule(
        "client-dp-loss-weights",
        "error",
        "client-dp",
        "loss-weights",
        "{second} under {first}",
        "clients would count by their loss, so no bound holds on the influence of one",
        "set --model.server FedAvg",
    ),
    Rule(
        "sample-dp-loss-weights",
        "error",
        "sample-dp",
        "loss-weights",
        "{second} under {first}",
        "clients would send their loss on private data without noise",
        "set --model.server FedAvg",
    ),
    Rule(
        "sample-dp-ordered-dropout",
        "error",
        "sample-dp",
        "ordered-dropout",
        "{first} with a method that draws narrower networks step by step",
        "gradients of single samples are not available inside the narrower networks",
        "set --model.method.draw round, or choose another method",
    ),
    Rule(
        "pruned-then-partial-noise",
        "error",
        "pruned-uploads",
        "partial-noise",
        "{first} before {second}, which does not noise every weight",
        "the weights without noise would show which ones were zeroed",
        _LATER,
        ordered=True,
    ),
    Rule(
        "chosen-then-noise",
        "error",
        "chosen-cells",
        "own-noise",
        "{first} sends only some weights, chosen by looking at the data, and {second} adds noise to their values",
        "which weights are sent is itself a release without noise",
        "use a variant that sends all weights, such as --defenses.NAME.variant zero, or let {second} act first",
        ordered=True,
    ),
    Rule(
        "clipped-then-pruned",
        "error",
        "client-dp",
        "pruned-uploads",
        "{second} after {first}",
        "it would move an update away from the norm that {first} has clipped it to, so the guarantee would not hold",
        _LATER,
        ordered=True,
    ),
    Rule(
        "clipped-then-noise",
        "error",
        "client-dp",
        "own-noise",
        "{second} after {first}",
        "it would move an update away from the norm that {first} has clipped it to, so the guarantee would not hold",
        _LATER,
        ordered=True,
    ),
    Rule(
        "fixed-participation",
        "warning",
        "client-dp",
        "fixed-participation",
        "{first} with a fixed number of participants in every round",
        "its accountant assumes that every client takes part by a coin of its own, so epsilon is not proved",
        "set --model.sampling poisson",
    ),
    Rule(
        "two-units",
        "warning",
        "sample-dp",
        "nominal-dp",
        "{first} and {second} both add noise, for different privacy units",
        "their epsilons mean different things",
        "report both and do not add them",
    ),
    Rule(
        "two-units-client",
        "warning",
        "sample-dp",
        "client-dp",
        "{first} and {second} both add noise, for different privacy units",
        "their epsilons mean different things",
        "report both and do not add them",
    ),
    Rule(
        "dp-local-adversary",
        "error",
        "sample-dp",
        "local-adversary",
        "{second} under {first}",
        "its attack network learns from all samples without noise and steers the gradient of every other sample, so "
        "clipping each gradient would not bound the influence of one sample",
        "leave {second} out",
    ),
    Rule(
        "dp-early-stopping",
        "warning",
        "sample-dp",
        "stops-early",
        "{second} under {first}",
        "when the run ends is decided by looking at private data, which epsilon does not count",
        "fix the number of rounds with --trainer.max_epochs",
    ),
    Rule(
        "client-dp-early-stopping",
        "warning",
        "client-dp",
        "stops-early",
        "{second} under {first}",
        "when the run ends is decided by looking at private data, which epsilon does not count",
        "fix the number of rounds with --trainer.max_epochs",
    ),
    Rule(
        "sample-dp-refusals",
        "warning",
        "sample-dp",
        "refuses-by-data",
        "{second} under {first}",
        "whether a client trains is decided by looking at its private data, which epsilon does not count",
        "set --defenses.NAME.gradient_suppression null, the one check that looks at them",
    ),
    Rule(
        "client-dp-refusals",
        "warning",
        "client-dp",
        "refuses-by-data",
        "{second} under {first}",
        "whether a client trains is decided by looking at its private data, which epsilon does not count",
        "set --defenses.NAME.gradient_suppression null, the one check that looks at them",
    ),
    Rule(
        "upload-dp-refusals",
        "warning",
        "upload-dp",
        "refuses-by-data",
        "{second} under {first}",
        "whether a client trains is decided by looking at its private data, which epsilon does not count",
        "set --defenses.NAME.gradient_suppression null, the one check that looks at them",
    ),
    Rule(
        "pruning-before-dp-noise",
        "warning",
        "pruned-uploads",
        "nominal-dp",
        "{first} before {second}",
        "the zeros get noise like all weights, so that they do not arrive as zeros",
        "let {second} act first (--defense_order) to see the zeros' own effect",
        ordered=True,
    ),
    Rule(
        "channel-label-masks",
        "warning",
        "channel",
        "label-masks",
        "{second} under {first}",
        "the rows that a client sends tell which classes it has, however well their values are hidden",
        _NO_MASKS,
    ),
    Rule(
        "channel-client-dp",
        "warning",
        "channel",
        "client-dp",
        "{second} over {first}",
        "the noise is added to the sum once it can be read, so whoever reads sums (the server under masks, all clients "
        "under encryption) sees it without noise, and epsilon holds against everybody else only",
        "trust them, or let clients add noise themselves with DPSGD",
    ),
    Rule(
        "channel-own-noise",
        "note",
        "channel",
        "own-noise",
        "{second} under {first}",
        "every client adds all the noise it needs by itself, although only sums come to light: its epsilon holds for "
        "the single update and does not count that it is hidden",
    ),
    Rule(
        "channel-pruned-uploads",
        "note",
        "channel",
        "pruned-uploads",
        "{second} under {first}",
        "zeros are hidden in the sums, so nobody can see which ones they are and refill them client by client",
    ),
    Rule(
        "channel-hidden-choice",
        "note",
        "channel",
        "hidden-choice",
        "{second} under {first}",
        "plain uploads would show which factors a client uses, since those that it uses move; in the sums nobody sees "
        "whose they are",
    ),
    Rule(
        "dp-then-pruning",
        "note",
        "sample-dp",
        "pruned-uploads",
        "{second} after {first}",
        "zeroing is post-processing of what is already private: epsilon stays as it is",
    ),
)
"""Checked before any training, all at once."""

"""What the figures of attacks show."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from finding_kit import QUICK, REASON, finding, full_finding, gaussian_scores, missing, records
from matplotlib.colors import to_hex

from app.metrics.leakage import measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import log_log_roc, roc_curve
from app.metrics.vulnerability import ClientRow
from app.results.attacks.membership import AttackRecord
from app.results.attacks.membership_figures import draw_clients, draw_leakage, draw_roc

ATTACKS = [f"attack-{number}" for number in range(14)]


def drawn_leakage(found, title=""):
    """The picture of some findings."""
    return draw_leakage(records(found), title)


def drawn_clients(found, *rates):
    """The picture of one finding's clients."""
    return draw_clients(AttackRecord.of(found), *rates)


def texts(axes):
    """Free texts in a picture."""
    return [text.get_text() for text in axes.texts]


def dots(axes):
    """Coordinates of all dots."""
    marked = [line for line in axes.get_lines() if line.get_marker() == "o" and line.get_xdata().size]
    return [(line.get_xdata().item(), line.get_ydata().item()) for line in marked]


def bars(axes, along):
    """Ends of all intervals and of the line of chance, along an axis."""
    ends = [list(line.get_data()[along]) for line in axes.get_lines()]
    return [end for end in ends if len(end) == 2]


def of_sizes(sizes, clients=()):
    """A finding whose clients have these sizes."""
    found = finding(clients=len(sizes), rows=20)
    sized = tuple(replace(row, size=size) for row, size in zip(found.clients, sizes, strict=True))
    return replace(found, clients=(*sized, *clients))


@pytest.fixture(scope="module")
def many():
    """More attacks than usual, on two targets."""
    targets = ("global", "uploads@40")
    return {f"{name}.{targets[k % 2]}": gaussian_scores(k / 6, 1, 200, k) for k, name in enumerate(ATTACKS)}


def test_roc_has_logarithmic_axes_and_a_line_per_result(many):
    """The curves of the metrics, and chance; the key names all with their AUC, the largest first."""
    figure = draw_roc(many, "title")
    [axes], [key] = figure.axes, figure.legends
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_title()) == ("log", "log", "title")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("false positive rate", "true positive rate")
    assert axes.get_xlim() == axes.get_ylim() == (0.01, 1)
    *curves, chance = axes.get_lines()
    assert len(curves) == 14
    assert list(chance.get_xdata()) == list(chance.get_ydata()) == [0.01, 1]
    ranked = sorted(many, key=lambda label: -roc_curve(many[label]).auc)
    for line, label in zip(curves, ranked, strict=True):
        fpr, tpr = log_log_roc(roc_curve(many[label]))
        assert np.array_equal(line.get_xdata(), fpr)
        assert np.array_equal(line.get_ydata(), tpr, equal_nan=True)
    named = [text.get_text() for text in key.get_texts()]
    assert named == [*(f"{roc_curve(many[label]).auc:.3f}  {label}" for label in ranked), "0.500  chance"]


def test_roc_colours_are_attacks_and_styles_are_targets(many):
    """14 attacks have 14 colours; the same attack on another target has its colour and another line."""
    both = {**many, "attack-0.uploads@40": gaussian_scores(3.0, 1, 200, 99)}
    lines = {line.get_label().split()[1]: line for line in draw_roc(both, "").axes[0].get_lines()}
    assert len({to_hex(line.get_color()) for label, line in lines.items() if label in many}) == 14
    assert lines["attack-0.global"].get_color() == lines["attack-0.uploads@40"].get_color()
    assert lines["attack-0.global"].get_linestyle() != lines["attack-0.uploads@40"].get_linestyle()
    assert lines["attack-0.global"].get_linestyle() == lines["attack-2.global"].get_linestyle()


def test_attackers_who_know_the_defense_have_looks_of_their_own():
    """Another line in one picture, another colour in the other, and the name of the attack stays short."""
    found = [finding(target="uploads"), finding(target="uploads", distance=2, adaptation="refilled")]
    lines = draw_roc({one.conditions.label: one.scores for one in found}, "").axes[0].get_lines()
    assert lines[0].get_color() == lines[1].get_color()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    figure = drawn_leakage(found)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["yeom", "yeom"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["uploads", "uploads+refilled"]
    marks = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert marks[0].get_color() != marks[1].get_color()


def test_everything_lies_inside_the_picture(many):
    """Also a key of 14 long names, and beside the axes."""
    long = {label.replace("attack", "a-paper-with-a-name.attack"): scores for label, scores in many.items()}
    figure = draw_roc(long, "title")
    figure.draw_without_rendering()
    [axes], page = figure.axes, figure.bbox
    key = figure.legends[0].get_window_extent()
    assert key.x0 > axes.get_window_extent().x1
    assert key.x1 <= page.x1
    assert key.y0 >= page.y0
    assert axes.get_tightbbox().x0 >= page.x0
    assert axes.get_window_extent().width > 350


def test_roc_of_few_rows_has_fewer_digits():
    """Twenty rows give no third digit; a single non-member still has a curve, and long names keep both ends."""
    scores, label = gaussian_scores(1.0, 1, 20), "p" * 60 + ".uploads@40"
    tiny = MembershipScores.of([1.0, 0.0], [True, False])
    figure = draw_roc({label: scores, "one.global": tiny}, "")
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named[1] == f"{roc_curve(scores).auc:.2f}  {'p' * 22}...{label[-15:]}"
    assert figure.axes[0].get_xlim()[0] == pytest.approx(0.1)


def test_leakage_shows_areas_and_rates_the_largest_on_top():
    """A dot at each value with its interval, chance in both panels, and names in the order of the AUC."""
    found = [finding("weak", distance=0.2), finding("strong", "uploads", distance=2), full_finding()]
    left, right = drawn_leakage(found, "title").axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["strong", "fedfa.lira-online", "weak"]
    ranked = [found[1].leakage, found[2].leakage, found[0].leakage]
    assert dots(left) == [(leakage.auc.value, place) for place, leakage in enumerate(ranked)]
    assert dots(right) == [(leakage.tpr[1].decision.tpr, place) for place, leakage in enumerate(ranked)]
    areas, rates = ([one.auc.interval for one in ranked], [one.tpr[1].tpr_at_target for one in ranked])
    assert bars(left, 0) == [*([end.low, end.high] for end in areas), [0.5, 0.5]]
    assert bars(right, 0) == [*([end.low, end.high] for end in rates), [0.01, 0.01]]
    assert right.get_xscale() == "symlog"
    assert right.get_xlim()[0] < 0
    assert "1 % FPR" in right.get_xlabel()
    assert left.get_ylim()[0] > left.get_ylim()[1]


def test_leakage_colours_are_targets():
    """One entry per target in the key."""
    figure = drawn_leakage([finding("a"), finding("b", "uploads"), finding("c", "uploads")])
    [key] = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["global", "uploads"]
    marked = [line.get_color() for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert len(set(marked)) == 2


def test_what_is_missing_is_written():
    """At the bottom, shortened; also a rate that the non-members cannot give."""
    found = [missing(reason=REASON * 3), finding(clients=2, rows=20), missing("z", reason="short")]
    left, right = drawn_leakage(found).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["yeom", "nasr", "z"]
    assert texts(left)[0].startswith("N/A: the server sees")
    assert texts(left)[0].endswith(" ...")
    assert max(map(len, texts(left))) <= 66
    assert texts(left)[1] == "N/A: short"
    assert texts(right) == ["N/A: too few non-members (20)", "N/A", "N/A"]
    assert len(dots(left)) == 1
    assert dots(right) == []


def test_rows_of_a_large_picture_do_not_overlap():
    """Forty results, some of them missing: names and reasons keep apart, and fit."""
    found = [finding(f"a-rather-long-name-of-attack-{k}", clients=1, rows=20, seed=k) for k in range(5)]
    lost = [missing(f"missing-{k:02}", reason=REASON * 2) for k in range(35)]
    figure = drawn_leakage([*found, *lost], "title")
    figure.draw_without_rendering()
    left, _ = figure.axes
    for artists in (left.get_yticklabels(), left.texts):
        boxes = sorted((artist.get_window_extent() for artist in artists), key=lambda box: box.y0)
        assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))
    assert max(text.get_window_extent().x1 for text in left.texts) <= left.get_window_extent().x1
    assert min(label.get_window_extent().x0 for label in left.get_yticklabels()) >= 0


def test_clients_by_size(tmp_path):
    """AUC over training samples on a logarithmic axis, chance, and the name of the worst."""
    found = finding()
    [axes] = drawn_clients(found).axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "training samples of the client"
    assert dots(axes) == [(row.size, row.leakage.auc.value) for row in found.clients]
    assert axes.get_title() == "yeom.global"
    worst = max(found.clients, key=lambda row: row.leakage.auc.value)
    assert texts(axes) == [f"client {worst.client}"]
    ends = [row.leakage.auc.interval for row in found.clients]
    assert bars(axes, 1) == [*([end.low, end.high] for end in ends), [0.5, 0.5]]
    AttackRecord.of(found).save(tmp_path)
    [loaded] = AttackRecord.load_all(tmp_path)
    assert dots(draw_clients(loaded).axes[0]) == dots(axes)


def test_clients_by_width():
    """A colour per width, the widest first in the key, with the number of clients."""
    figure = drawn_clients(finding(), {0: 0.5, 1: 1.0, 2: 0.5, 3: 0.25})
    [key] = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["width 1 (1)", "width 0.5 (2)", "width 0.25 (1)", "chance"]
    marked = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o" and line.get_xdata().size]
    assert len({to_hex(line.get_color()) for line in marked}) == 3


@pytest.mark.parametrize("sizes", [[500] * 6, [83, 84, 83, 84], [10, 10, 5000]])
def test_clients_of_equal_size_stand_side_by_side(sizes):
    """No dot hides another, none comes near another size, and the sizes themselves are marked."""
    [axes] = drawn_clients(of_sizes(sizes)).axes
    places = [x for x, _ in dots(axes)]
    assert len(set(places)) == len(places)
    assert all(min(set(sizes), key=lambda size: abs(size - x)) == size for x, size in zip(places, sizes, strict=True))
    assert axes.get_xticks().tolist() == sorted(set(sizes))
    assert axes.get_xlabel().endswith("(equal sizes side by side)")
    assert axes.get_xlim()[0] < min(places)
    assert max(places) < axes.get_xlim()[1]


def test_sizes_that_crowd_get_round_ticks():
    """As many marks as can be read."""
    [axes] = drawn_clients(of_sizes([10, 20, 21, 22, 23, 24, 800])).axes
    assert {20, 50, 100, 200, 500} <= set(axes.get_xticks().tolist())
    assert 21 not in axes.get_xticks()


@pytest.mark.parametrize("shown", [0, 1])
def test_clients_without_a_number_are_counted(shown, tmp_path):
    """They have no place in the picture, which is drawn all the same."""
    lost = (ClientRow(8, 5, NotAvailable("no members")), ClientRow(9, 0, finding().leakage))
    found = of_sizes([10], lost) if shown else replace(missing(), clients=lost)
    figure = drawn_clients(found)
    figure.savefig(tmp_path / "picture.png", dpi=40)
    assert len(dots(figure.axes[0])) == shown
    assert 0 < figure.axes[0].get_xlim()[0] < 10 < figure.axes[0].get_xlim()[1]
    assert figure.axes[0].get_title().endswith(f"\nnot shown, without a number: 2 of {2 + shown} clients")


def test_a_value_without_an_interval_is_a_dot(tmp_path):
    """A single member and non-member have an area, but no interval."""
    leakage = measure_leakage(MembershipScores.of([1.0, 0.0], [True, False]), bootstrap=QUICK)
    found = replace(finding(), leakage=leakage, clients=(ClientRow(0, 3, leakage),))
    for figure in (drawn_clients(found), drawn_leakage([found])):
        figure.savefig(tmp_path / "picture.png", dpi=40)
        assert len(dots(figure.axes[0])) == 1
        assert len(figure.axes[0].get_lines()) <= 3


def test_nothing_can_be_drawn(tmp_path):
    """No results, no failure."""
    draw_roc({}, "").savefig(tmp_path / "roc.png", dpi=40)
    drawn_leakage([]).savefig(tmp_path / "leakage.png", dpi=40)

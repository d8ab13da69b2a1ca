"""Reconstructions are kept as they were found, and shown with all that is needed to judge them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import wandb
from finding_kit import kept
from matplotlib.colors import to_hex
from matplotlib.image import imread
from tracking_kit import Experiment

from app.attacks.reconstruction.base import ImagePairs, ReconstructionConditions, ReconstructionFinding, Truth
from app.common.errors import UserError
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import matched_images, score_reconstruction
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.attacks.reconstruction_figures import FRAME, draw_reconstructions, draw_summary
from app.results.attacks.reconstruction_report import LINE, NO_BETTER, rows, table
from app.results.run.folder import RunFolder
from app.results.run.results import conclude, summaries
from app.results.run.tracking import RoundLogger

REASON = "the clients take steps of Adam: their update is not a multiple of the gradient, so no row of it is an image"


PREFIX = "attacks/reconstruction"


def finding(label="rolling.2", count=4, exact=2, shape=(1, 8, 8), candidates=None, notes=(), others=30):
    """A result: the first images exact, the others mixed with noise; clients 3 and 4 in turn, samples 100, 101 ..."""
    source, places = torch.Generator().manual_seed(count), torch.arange(count)
    images = torch.rand(count, *shape, generator=source)
    truth = Truth(images, places % 2, 3 + places % 2, 100 + places)
    mixed = 0.5 * images + 0.5 * torch.rand(count, *shape, generator=source)
    offered = torch.where((places < exact).view(-1, 1, 1, 1), images, mixed)[:candidates]
    keys = [(3 + row % 2, 100 + row, row % 2) for row in range(count)]
    guesses = {"batch mean": images.mean(dim=0, keepdim=True).expand_as(images)} if others else {}
    guesses |= {f"best of {others} others": torch.rand(others, *shape, generator=source)} if others else {}
    result = score_reconstruction(images, keys, offered, torch.arange(len(offered))[:2], guesses)
    conditions = ReconstructionConditions("rolling", label, "malicious server", "sums of updates", 2, (3, 4), notes)
    found = ImagePairs(truth, matched_images(offered, result.per_image))
    details = {"isolation error": 1e-7, "none": math.nan}
    return ReconstructionRecord.of(ReconstructionFinding(conditions, result, found, details, 1.5))


def missing(label="convergence", reason=REASON, failed=False):
    """A result without numbers."""
    conditions = ReconstructionConditions("convergence", label, "malicious server", "sums of updates", 3, (0,))
    return ReconstructionRecord.of(ReconstructionFinding(conditions, NotAvailable(reason), seconds=0.5, failed=failed))


def texts(figure):
    """Everything that is written beside the images."""
    return [text.get_text() for axes in figure.axes for text in (axes.title, *axes.texts) if text.get_text()]


def loaded(run, label="rolling.2"):
    """A result from its file."""
    return ReconstructionRecord.load(run / PREFIX / f"{label}.json")


def names(run):
    """Files of all results."""
    return sorted(path.name for path in (run / PREFIX).iterdir())


@pytest.fixture
def run(tmp_path):
    """A folder that does not exist yet."""
    return tmp_path / "run"


@pytest.fixture
def folder(tmp_path):
    """A finished run."""
    (tmp_path / "a").mkdir()
    run = RunFolder(tmp_path / "a")
    run.write_json("summary.json", {"round": 2})
    return run


def test_everything_comes_back(run):
    """Conditions, scores, nulls and details; images bit for bit with their keys, nothing pickled."""
    found = finding(candidates=3, notes=("one",))
    found.save(run)
    [record] = ReconstructionRecord.load_all(run)
    assert (record.conditions, record.result, record.seconds) == (found.conditions, found.result, 1.5)
    assert record.details["isolation error"] == 1e-7
    assert math.isnan(record.details["none"])
    images = record.images
    assert np.array_equal(images.originals, found.pairs.truth.images.numpy())
    assert np.array_equal(images.reconstructions, found.pairs.reconstructions.numpy(), equal_nan=True)
    assert np.isnan(images.reconstructions).any(axis=(1, 2, 3)).sum() == 1
    assert images.keys.tolist() == [[3, 100, 0], [4, 101, 1], [3, 102, 0], [4, 103, 1]]


def test_json_holds_no_nan(run):
    """Other programs refuse it."""
    finding().save(run)
    text = (run / PREFIX / "rolling.2.json").read_text()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert plain["details"] == {"isolation error": 1e-7, "none": None}
    assert plain["numbers"]["recovered"] == 2


def test_a_later_result_takes_the_place_of_the_earlier(run):
    """With its images and its picture, which would show something else."""
    found = finding()
    found.save(run)
    conclude(RunFolder(run), [found])
    assert names(run) == ["rolling.2.json", "rolling.2.npz", "rolling.2.png"]
    missing("rolling.2").save(run)
    assert names(run) == ["rolling.2.json"]
    assert loaded(run).result == NotAvailable(REASON)
    with pytest.raises(UserError, match="no arrays of rolling"):
        _ = loaded(run).images


def test_bad_files_are_named(run):
    """The file that cannot be read, and labels that are no names."""
    finding().save(run)
    (run / PREFIX / "rolling.2.npz").write_bytes(b"no archive")
    (run / PREFIX / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad\.json cannot be read"):
        ReconstructionRecord.load_all(run)
    with pytest.raises(UserError, match=r"rolling\.2\.npz cannot be read"):
        _ = loaded(run).images
    with pytest.raises(UserError, match=r"'\.\./x'"):
        finding("../x").save(run)


def test_a_full_disk_loses_nothing_old(run, monkeypatch):
    """What was written before is kept, and no part of the new files stays."""
    found = replace(finding(), details={})
    found.save(run)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        missing("rolling.2").save(run)
    monkeypatch.undo()
    assert list(map(kept, ReconstructionRecord.load_all(run))) == [kept(found)]
    assert names(run) == ["rolling.2.json", "rolling.2.npz"]


def test_summary_has_every_number_by_label(run):
    """Means and best values, the share with its bounds, every null; what is missing has its time only."""
    found = finding()
    for one in (found, missing()):
        one.save(run)
    numbers, oracle = summaries(RunFolder(run))["reconstruction"], found.result.oracle
    front = "attacks/reconstruction/rolling.2"
    assert numbers[f"{front}/pearson"] == oracle.pearson_mean
    assert numbers[f"{front}/psnr_best"] == oracle.psnr_best
    assert numbers[f"{front}/ssim"] == oracle.ssim_mean
    assert numbers[f"{front}/blind_pearson"] == found.result.blind.pearson_mean
    assert numbers[f"{front}/share_low"] == oracle.recovered_share.interval.low
    assert numbers[f"{front}/share_high"] == oracle.recovered_share.interval.high
    assert (numbers[f"{front}/recovered"], numbers[f"{front}/share"], numbers[f"{front}/images"]) == (2, 0.5, 4)
    means = {null.name: null.similarity.pearson_mean for null in found.result.nulls}
    assert {name: numbers[f"{front}/null/{name}"] for name in means} == means
    assert numbers[f"{front}/strongest_null"] == max(means.values())
    assert numbers[f"{front}/details/isolation error"] == 1e-7
    assert f"{front}/details/none" not in numbers
    assert {name for name in numbers if "convergence" in name} == {"attacks/reconstruction/convergence/seconds"}


def test_the_table_says_what_was_found():
    """Clients, images, share with interval, correlations, and the guess to compare with."""
    found = finding()
    line = next(line for line in table([found]).splitlines() if line.startswith("rolling.2"))
    oracle, guess = found.result.oracle, found.result.strongest_null
    assert line.split("  ")[1].strip() == "3, 4"
    assert "50 [15, 85]" in line
    means = (oracle.pearson_mean, oracle.pearson_best, found.result.blind.pearson_mean)
    assert "  ".join(f"{value:.3f}" for value in means) in line
    assert f"{oracle.psnr_mean:.1f}  {oracle.psnr_best:.1f}" in line
    assert line.endswith(f"{guess.name} {guess.similarity.pearson_mean:.3f}")


def test_the_table_fits_and_gives_reasons():
    """No line is longer than allowed, whatever the label; N/A in every cell, the reason below, remarks once."""
    long = finding("a-label-that-is-very-long." * 3, notes=("a remark " * 20,))
    text = table([long, missing(failed=True), finding(notes=("shared",)), finding("third", notes=("shared",))])
    lines = text.splitlines()
    assert max(map(len, lines)) <= LINE
    place = next(number for number, line in enumerate(lines) if line.startswith("convergence"))
    assert lines[place].count("N/A") == 8
    assert " ".join("\n".join(lines[place + 1 : place + 3]).split()).startswith(f"failed: {REASON}"[:100])
    assert lines[place + 1].startswith("    failed: ")
    assert lines.count("- shared (rolling.2, third)") == 1
    assert sum(line == long.conditions.label for line in lines) == 1
    assert table([]) == "no reconstruction was tried"
    for letters in range(30, 60):
        renamed = replace(long, conditions=replace(long.conditions, label="x" * letters, notes=()))
        assert max(map(len, table([renamed]).splitlines())) <= LINE


def test_results_no_better_than_a_guess_are_named():
    """Only those: the others have exceeded the strongest null."""
    weak = finding("weak", exact=0, candidates=1, others=500)
    assert weak.result.beats_guessing is False
    assert finding().result.beats_guessing is True
    assert f"- {NO_BETTER} (weak)" in table([weak, finding()]).splitlines()
    assert NO_BETTER not in table([finding(), finding("b", others=0), missing()])


def test_rows_have_a_value_for_every_column():
    """None where there is none; the reason at the end."""
    plain = rows([finding(), missing()])
    named, lost = (dict(zip(plain.columns, row, strict=True)) for row in plain.rows)
    assert (named["label"], named["clients"], named["images"], named["reason"]) == ("rolling.2", "3, 4", 4, None)
    assert named["null"] == finding().result.strongest_null.name
    assert lost["reason"] == REASON
    assert lost["pearson"] is None


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 8, 8)])
def test_pairs_are_drawn_best_first(shape):
    """Originals above, what was made of them below with its score, keys above, a frame round those recovered."""
    found = finding(shape=shape, candidates=3)
    figure = draw_reconstructions(found, "title")
    assert len(figure.axes) == 8
    ranked = sorted(range(4), key=lambda row: -found.result.per_image[row].pearson)
    for place, row in enumerate(ranked):
        upper, lower = figure.axes[2 * place : 2 * place + 2]
        score = found.result.per_image[row]
        assert upper.get_title() == f"client {score.client}\nsample {score.sample}"
        picture = found.pairs.truth.images[row].numpy()
        shown = np.moveaxis(picture, 0, -1) if shape[0] == 3 else picture.mean(axis=0)
        assert np.array_equal(upper.images[0].get_array(), shown)
        framed = [patch for patch in lower.patches if to_hex(patch.get_edgecolor()) == FRAME]
        assert len(framed) == (score.pearson >= 0.98)
        if score.candidate >= 0:
            assert texts(figure)[2 * place + 1] == f"r = {score.pearson:.2f}, {score.psnr:.0f} dB"
            assert len(lower.images) == 1
    assert len(lower.images) == 0
    assert [patch.get_hatch() for patch in lower.patches] == ["////"]
    assert texts(figure)[-1] == "none"


def test_large_figures_show_the_best_and_say_so():
    """Twenty pairs in two lines; the mean over all images stands above, with the strongest guess."""
    found = finding(count=33, exact=5)
    figure = draw_reconstructions(found, "title")
    assert len(figure.axes) == 40
    above = " ".join(figure.texts[0].get_text().split())
    assert above.startswith("title mean r = ")
    assert f"{found.result.oracle.pearson_mean:.2f} over 33 images" in above
    assert "recovered (framed) 5/33" in above
    assert found.result.strongest_null.name in above
    assert above.endswith("the 20 most alike are shown")
    edges = sorted({round(axes.get_position().y0, 6) for axes in figure.axes})
    assert len(edges) == 4
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert min(box.x0 for box in boxes) >= figure.bbox.x0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert figure.texts[0].get_window_extent().y0 > max(box.y1 for box in boxes)


def test_scores_below_the_threshold_are_not_rounded_up():
    """0.9796 is not shown as 0.98, which would want a frame."""
    found = finding(exact=0)
    scores = (replace(found.result.per_image[0], pearson=0.9796), *found.result.per_image[1:])
    figure = draw_reconstructions(replace(found, result=replace(found.result, per_image=scores)), "")
    assert texts(figure)[1].startswith("r = 0.97,")


def test_the_summary_draws_both_choices_and_the_guess():
    """The largest mean on top, the share with its interval, N/A with its reason at the bottom."""
    good, poor = finding(), finding("poor", exact=0)
    left, right = draw_summary([missing(), poor, good], "title").axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["rolling.2", "poor", "convergence"]
    marks = [(line.get_marker(), line.get_xdata()[0], line.get_ydata()[0]) for line in left.get_lines()]
    for place, one in enumerate((good, poor)):
        guess = one.result.strongest_null.similarity.pearson_mean
        expected = [("|", guess), ("o", one.result.blind.pearson_mean), ("o", one.result.oracle.pearson_mean)]
        assert [mark[:2] for mark in marks if mark[2] == place and mark[0] != "None"] == expected
    share = good.result.oracle.recovered_share
    assert list(right.get_lines()[0].get_xdata()) == [100 * share.interval.low, 100 * share.interval.high]
    assert list(right.get_lines()[1].get_xdata()) == [50]
    assert left.texts[0].get_text().startswith("N/A: the clients take")
    assert [text.get_text() for text in right.texts] == ["N/A"]


@pytest.mark.usefixtures("pixels")
def test_all_is_kept_and_told(folder, monkeypatch):
    """Files at once, then table, figures, the run's summary beside what it held, and W&B."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", property(lambda self: experiment))
    found = [finding(), missing()]
    for one in found:
        one.save(folder.path)
    assert sorted(path.suffix for path in (folder.path / PREFIX).iterdir()) == [".json", ".json", ".npz"]
    conclude(folder, found, tracker=RoundLogger(offline=True, images=True))
    assert ReconstructionRecord.text(found) == table(found)
    assert imread(folder.path / PREFIX / "rolling.2.png").ndim == 3
    assert imread(folder.path / f"{PREFIX}.png").ndim == 3
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary == {"round": 2, **summaries(folder)}
    assert experiment.results == summary["reconstruction"] == ReconstructionRecord.summary(found)
    [step] = experiment.logged
    assert step["attacks/reconstructions"].data == rows(found).rows
    drawn = {name for name, value in step.items() if isinstance(value, wandb.Image)}
    assert drawn == {f"{PREFIX}/rolling.2", PREFIX}


def test_results_without_images_need_no_figures(folder):
    """Nothing found and no tracker: a table, a summary of what is missing, and no file of images."""
    missing().save(folder.path)
    conclude(folder, [missing()])
    assert REASON.split(":")[0] in ReconstructionRecord.text([missing()])
    assert names(folder.path) == ["convergence.json"]
    assert summaries(RunFolder(folder.path.parent / "b")) == {}


def test_an_attack_without_candidates_is_drawn(folder):
    """It found nothing, which is a result: hatched boxes and a share of 0 with its interval."""
    found = finding(candidates=0)
    found.save(folder.path)
    conclude(folder, [found])
    assert (folder.path / PREFIX / "rolling.2.png").is_file()
    assert "0 [0, 49]" in table([found])
    assert set(texts(draw_reconstructions(found, ""))) >= {"none"}

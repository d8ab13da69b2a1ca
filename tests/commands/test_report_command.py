"""`rampart report`: what it writes, what it prints, what it leaves out, and what it refuses."""

import csv
import json

import pytest
import yaml
from report_kit import figure, parsed
from run_kit import exit_code
from store_kit import labels, make_run, make_store

from app.results.report.report import report

FILES = ["pareto.png", "pareto.svg", "table-seeds.csv", "table.csv", "table.md", "table.tex"]


@pytest.fixture(autouse=True)
def one_figure(monkeypatch):
    """Figures have their own tests, and take long."""
    monkeypatch.setattr("app.results.report.report.figures_of", lambda store, table: iter([figure()]))


@pytest.fixture
def comparison(tmp_path):
    """Folder of a comparison with planted effects, without attacks."""
    make_store(("fedavg",), ("none", "dp-sgd"), seeds=(0, 1, 2), attacked=False, folder=tmp_path / "compared")
    return tmp_path / "compared"


def test_a_comparison(comparison, capsys):
    """The page in its folder, files beside it, the table on the terminal, and exit code 0."""
    assert exit_code("report", str(comparison)) == 0
    told = capsys.readouterr().out
    assert "fedavg / dp-sgd" in told
    assert f"report: {comparison / 'report.html'}" in told
    assert "left out" not in told
    assert sorted(path.name for path in (comparison / "report").iterdir()) == FILES
    root = parsed((comparison / "report.html").read_text())
    assert root.one("h1").text == "compared"
    assert [line.attributes["data-defense"] for line in root.one("table", id="comparison").one("tbody").children] == [
        *("none", "dp-sgd"),
    ]
    with (comparison / "report" / "table-seeds.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["measure"] == "server_accuracy"]
    assert [(line["defense"], line["seed"]) for line in lines] == [
        (defense, seed) for defense in ("none", "dp-sgd") for seed in "012"
    ]


def test_the_planted_effect_is_found(comparison):
    """DP-SGD costs ten points: the page calls the other row best, and only that one."""
    root = parsed(report(comparison).path.read_text())
    assert "fedavg / none is best" in root.one("section", id="findings").text
    body = root.one("table", id="comparison").one("tbody")
    assert {strong.parent.parent.attributes["data-defense"] for strong in body.all("strong")} == {"none"}


def test_made_again(comparison, capsys):
    """A second report replaces the first, and does not take the first one's folder for a run."""
    assert exit_code("report", str(comparison)) == 0
    assert exit_code("report", str(comparison)) == 0
    assert "left out" not in capsys.readouterr().out


def test_a_single_run(tmp_path, capsys):
    """Its page lies in its folder; there is nothing to compare, and that is said."""
    run = make_run(tmp_path / "alone", labels(seed=7))
    assert exit_code("report", str(run)) == 0
    assert "nothing to compare" in parsed((run / "report.html").read_text()).one("section", id="findings").text
    assert sorted(path.name for path in (run / "report").iterdir()) == FILES


def test_runs_of_several_folders(tmp_path):
    """One report of all of them, in the first folder."""
    first = make_run(tmp_path / "a", labels(seed=0))
    make_run(tmp_path / "others" / "b", labels(defense="dp-sgd", seed=0))
    path = report(first, tmp_path / "others").path
    assert path == first / "report.html"
    assert len(parsed(path.read_text()).one("table", id="comparison").one("tbody").children) == 2


def test_the_folder_of_the_comparison_comes_first(comparison, tmp_path):
    """Wherever it stands among the folders."""
    run = make_run(tmp_path / "a", labels(defense="other"))
    assert report(run, comparison).path == comparison / "report.html"


def test_another_place(comparison, tmp_path):
    """`--output` names the page; its files lie in a folder of the same name."""
    assert exit_code("report", str(comparison), "--output", str(tmp_path / "web" / "mine.html")) == 0
    assert sorted(path.name for path in (tmp_path / "web").iterdir()) == ["mine", "mine.html"]
    assert not (comparison / "report.html").exists()


def test_half_written_runs_are_left_out(comparison, capsys):
    """Not finished, cut short, or none of ours: each with its reason, on the terminal and in the page."""
    runs = sorted(path for path in comparison.iterdir() if path.is_dir())
    (runs[0] / "summary.json").unlink()
    (runs[1] / "summary.json").write_text('{"final": ')
    (comparison / "holiday").mkdir()
    assert exit_code("report", str(comparison)) == 0
    told = capsys.readouterr().out
    assert "left out (3):" in told
    assert f"{runs[0]}: the run is not finished" in told
    assert f"{runs[1]}: " in told
    assert f"{comparison / 'holiday'}: it is no run of this program" in told
    left = parsed((comparison / "report.html").read_text()).one("section", id="skipped").text
    assert all(str(path) in left for path in (*runs[:2], comparison / "holiday"))


def test_nothing_to_report(tmp_path, capsys):
    """A folder without a run, or only with unfinished ones: exit code 2, cause and remedy, and no page."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("")
    assert exit_code("report", str(tmp_path / "photos")) == 2
    assert "no finished run" in capsys.readouterr().err
    run = make_run(tmp_path / "half")
    (run / "summary.json").unlink()
    assert exit_code("report", str(run)) == 2
    assert "the run is not finished" in capsys.readouterr().err
    assert not list(tmp_path.rglob("report*"))


@pytest.mark.parametrize("arguments", [(), ("nowhere",), ("runs", "--track", "loudly"), ("runs", "--nonsense")])
def test_wrong_arguments(arguments, tmp_path, monkeypatch, capsys):
    """Exit code 2, with a word on what is wrong."""
    monkeypatch.chdir(tmp_path)
    assert exit_code("report", *arguments) == 2
    assert "error: " in capsys.readouterr().err


def test_files_of_others_are_not_overwritten(comparison, tmp_path, capsys):
    """Neither a page that is none of ours, nor a file that is no page."""
    page = tmp_path / "index.html"
    page.write_text("<h1>my home page</h1>")
    assert exit_code("report", str(comparison), "--output", str(page)) == 2
    assert "no report of this program" in capsys.readouterr().err
    assert page.read_text() == "<h1>my home page</h1>"
    assert exit_code("report", str(comparison), "--output", str(tmp_path / "thesis.tex")) == 2
    assert ".html" in capsys.readouterr().err


def test_a_run_of_that_name_is_left_alone(comparison, capsys):
    """The folder of tables and figures must not be a run."""
    (comparison / "report").mkdir()
    (comparison / "report" / "config.yaml").write_text("")
    assert exit_code("report", str(comparison)) == 2
    assert "which is a run" in capsys.readouterr().err
    assert [path.name for path in (comparison / "report").iterdir()] == ["config.yaml"]


def test_opening(comparison, monkeypatch):
    """The page is shown by the browser of the user, from disk."""
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert exit_code("report", str(comparison), "--open") == 0
    assert shown == [(comparison / "report.html").resolve().as_uri()]


def test_published_figures(comparison, capsys):
    """What the comparison knows as published stands beside ours; without any, `--published` says so."""
    assert exit_code("report", str(comparison), "--published") == 2
    assert "no published figures are known" in capsys.readouterr().err
    path = comparison / "comparison.json"
    figure = {"dataset": "digits", "method": "fedavg", "measure": "server_accuracy", "value": 91.5, "unit": "%"}
    told = json.loads(path.read_text()) | {"published": [{**figure, "where": "Table 1"}]}
    path.write_text(json.dumps(told))
    assert exit_code("report", str(comparison), "--published") == 0
    assert "91.50 %" in capsys.readouterr().out
    root = parsed((comparison / "report.html").read_text())
    assert "91.50 %" in root.one("section", id="published").text
    assert (comparison / "report" / "published.md").is_file()


def test_kept_in_the_tracker(comparison, monkeypatch, capsys):
    """One run of the comparison's group, with the page, all files, and every mean in the summary."""
    made, kept, ended = [], [], []

    class Tracker:
        def log_report(self, page, others, summary, columns, rows):
            kept.append((page, others, summary, columns, rows))

        def finalize(self, status):
            ended.append(status)

    def make(*arguments):
        made.append(arguments)
        return Tracker()

    monkeypatch.setattr("app.commands.report.make_tracker", make)
    config = next(iter(comparison.glob("*/config.yaml")))
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "project": "mine"}))
    assert exit_code("report", str(comparison), "--track", "offline") == 0
    assert made == [("offline", comparison / "report", "compared-report", "compared", "mine", None)]
    [(page, others, summary, columns, rows)] = kept
    assert page == comparison / "report.html"
    assert [path.name for path in others] == FILES
    assert summary["report/digits/fedavg/dp-sgd/server_accuracy"] == pytest.approx(80.0, abs=1.0)
    assert [row[:4] for row in rows] == [["digits", "fedavg", "none", 3], ["digits", "fedavg", "dp-sgd", 3]]
    assert rows[1][columns.index("server_accuracy")] == summary["report/digits/fedavg/dp-sgd/server_accuracy"]
    assert ended == ["success"]
    assert "compared-report" in capsys.readouterr().out

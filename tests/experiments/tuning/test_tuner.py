"""Trials whose accuracy is planted: which settings are chosen, what is stopped early, and going on."""

import json
import sys

import pytest
from tuning_kit import Laboratory, planted, rates, tuned_spec, tuner_of

from app.common.errors import UserError
from app.experiments.matrix import planned_runs
from app.experiments.tuning.space import RATE, value_at
from app.experiments.tuning.tuner import tuned_runs

NONE, DP = ("digits", "fedavg", "none"), ("digits", "fedavg", "dp-sgd")


def records(folder):
    """Everything that tuning has left, by file, but the runs."""
    return {path.name: json.loads(path.read_text()) for path in sorted((folder / "runs/.tuning").glob("*.json"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted tuning: its folder, tuner and laboratory."""
    folder, work = tmp_path_factory.mktemp("whole"), Laboratory()
    tuner = tuner_of(folder)
    assert tuner.run(work)
    return folder, tuner, work


def test_the_best_of_those_that_went_on_is_chosen(whole):
    """By the planted accuracy; every row has as many trials, at the same learning rates, the recipe first."""
    _, tuner, _ = whole
    chosen = tuner.chosen()
    assert rates(chosen[NONE]) == rates(chosen[DP])
    assert rates(chosen[NONE])[0] is None
    for row in chosen.values():
        best = min(rates(row)[1:], key=lambda rate: -planted_at(rate))
        assert row.settings[RATE] == best
        assert row.trials[row.chosen].accuracy == pytest.approx(planted_at(best))
        assert row.trials[0].accuracy == pytest.approx(planted_at(0.001))
        assert row.completed == 6


def planted_at(rate):
    return planted({"model": {"local": {"optimizer": {"init_args": {"lr": rate}}}}})


def test_the_worse_half_stops_after_a_third_of_the_rounds(whole):
    """Three of six go on, and the recipe, which is the fourth best here."""
    _, tuner, work = whole
    for row in tuner.chosen().values():
        ranked = sorted(row.trials, key=lambda trial: -planted_at(rates(row)[trial.number] or 0.001))
        states = [trial.state for trial in ranked]
        assert states[:3] == ["complete"] * 3
        assert {trial.number for trial in ranked if trial.state == "complete"} == {0, *(t.number for t in ranked[:3])}
        assert {trial.rounds for trial in row.trials if trial.state == "stopped"} == {2}
        assert sum(trial.seconds for trial in row.trials) == row.seconds == 2.0 * sum(t.rounds for t in row.trials)
    assert all(name.endswith((" 2", " 6")) for name in work.made)


def test_trials_are_runs_without_attacks_or_test_data(whole):
    """With the seed of tuning, on the validation split, and otherwise with the settings of the row."""
    _, _, work = whole
    assert len(work.configs) == 12
    for config in work.configs.values():
        assert not config["attacks"]
        assert config["data"]["init_args"]["holdout"]["evaluated"] == "validation"
        assert config["data"]["init_args"]["holdout"]["validation"] == 0.1
        assert config["seed_everything"] == 0
    assert {value_at(work.configs["digits-fedavg-dp-sgd-s0-t3"], "defenses.dp_sgd.target_epsilon")} == {8}


def test_runs_get_the_settings_of_their_row(whole, tmp_path):
    _, tuner, _ = whole
    spec = tuned_spec(tmp_path, seeds=[0, 1])
    for planned in tuned_runs(spec, planned_runs(spec), tuner.chosen()):
        text = " ".join(planned.arguments)
        for option, value in tuner.chosen()[planned.combination].settings.items():
            assert f"--{option} {value}" in text
        assert "--data.holdout.validation 0.1" in text
        assert "evaluated" not in text


@pytest.mark.parametrize("backwards", [False, True])
def test_neither_interruptions_nor_order_matter(whole, tmp_path, backwards):
    """Stopped after every third job and gone on by a new process, in the order of jobs or against it."""
    folder, _, work = whole
    made = []
    for _ in range(100):
        once = Laboratory(most=3, backwards=backwards)
        ended = tuner_of(tmp_path).run(once)
        made += once.made
        if ended:
            break
    assert records(tmp_path) == records(folder)
    assert sorted(made) == sorted(work.made), "no trial is made twice"
    again = Laboratory()
    assert tuner_of(tmp_path).run(again)
    assert not again.made


def test_refused_trials_count_as_failed(tmp_path):
    """They are not chosen, and not tried again; the others go on."""
    tuner = tuner_of(tmp_path)
    assert tuner.run(Laboratory(codes={"none-s0-t2": 1, "none-s0-t4": 1}))
    row = tuner.chosen()[NONE]
    assert [trial.state == "failed" for trial in row.trials] == [False, False, True, False, True, False]
    assert row.completed == 4
    assert tuner.chosen()[DP].completed == 6


def test_a_trial_that_fails_late_is_not_replaced(whole, tmp_path):
    """One of the better half is refused after it was compared: no other one goes on, also after an interruption."""
    best = whole[1].chosen()[NONE].chosen
    lost = {f"none-s0-t{best} 6": 1}
    tuner = tuner_of(tmp_path)
    assert not tuner.run(Laboratory(codes=lost, most=14))
    again = Laboratory(codes=lost)
    assert tuner_of(tmp_path).run(again)
    states = [{trial.number: trial.state for trial in one.chosen()[NONE].trials} for one in (whole[1], tuner)]
    assert states[1] == {**states[0], best: "failed"}
    assert not any(name.startswith(f"digits-fedavg-none-s0-t{best} ") for name in again.made)


def test_killed_trials_are_tried_again(tmp_path):
    """Nothing is concluded before they have ended."""
    tuner = tuner_of(tmp_path)
    assert not tuner.run(Laboratory(codes={"dp-sgd-s0-t1": 137}))
    assert tuner.unfinished == ["digits-fedavg-dp-sgd-s0-t1"]
    assert not tuner.chosen()
    again = Laboratory()
    assert tuner_of(tmp_path).run(again)
    assert [name for name in again.made if name.endswith(" 2")] == ["digits-fedavg-dp-sgd-s0-t1 2"]


def test_the_recipe_wins_ties_and_where_nothing_works(tmp_path):
    tuner = tuner_of(tmp_path)
    assert tuner.run(Laboratory(lambda config: 0.5, codes={f"dp-sgd-s0-t{number}": 1 for number in range(6)}))
    assert [tuner.chosen()[row].settings for row in (NONE, DP)] == [{}, {}]
    assert tuner.chosen()[DP].completed == 0


def test_everything_goes_on_where_told(tmp_path):
    tuner, work = tuner_of(tmp_path, tune={"trials": 6, "prune": False}), Laboratory()
    assert tuner.run(work)
    assert len(work.made) == 12
    assert all(name.endswith(" 6") for name in work.made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tune": {"trials": 8}}, "was tuned with other trials"),
        ({"tune": {"trials": 6, "seed": 1}}, "was tuned with other trials"),
        ({"tune": {"trials": 6, "space": {"lr": [0.1, 0.2]}}}, "was tuned with other trials"),
        ({"set": {"trainer.max_epochs": 6, "model.local.batch_size": 8}}, "model of digits-fedavg-none differ"),
    ],
)
def test_what_was_tuned_otherwise_is_refused(whole, changes, words):
    folder, tuner, _ = whole
    assert not list(tuner.problems())
    problems = [str(problem) for problem in tuner_of(folder, **changes).problems()]
    assert any(words in problem and "delete" in problem for problem in problems)


def test_the_file_is_a_study_of_optuna(whole):
    """Which Optuna itself reads: the same settings, states and values."""
    import optuna

    folder, tuner, _ = whole
    for row in tuner.chosen().values():
        path = folder / f"runs/.tuning/digits-fedavg-{row.defense}.optuna.jsonl"
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        study = optuna.load_study(study_name=path.name.removesuffix(".optuna.jsonl"), storage=storage)
        assert [trial.params for trial in study.trials] == [dict(trial.settings) for trial in row.trials]
        names = {"COMPLETE": "complete", "PRUNED": "stopped"}
        assert [names[trial.state.name] for trial in study.trials] == [trial.state for trial in row.trials]
        assert study.best_trial.number == row.chosen
        assert study.best_value == row.trials[row.chosen].accuracy
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_trials_of_another_study_are_refused(tmp_path):
    """An unfinished tuning whose points were others."""
    assert not tuner_of(tmp_path).run(Laboratory(most=0))
    with pytest.raises(UserError, match="have other settings than the comparison now asks for"):
        tuner_of(tmp_path, tune={"trials": 6, "seed": 3}).run(Laboratory())


def test_without_optuna(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'rampart-fl\[tune\]'"):
        tuner_of(tmp_path)

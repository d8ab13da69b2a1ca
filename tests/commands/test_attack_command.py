"""`rampart attack`, and attacks at the end of `rampart fit`: the same numbers, files for everybody, good refusals."""

import inspect
import json
import shutil
import signal

import numpy as np
import pytest
from run_kit import command, exit_code, leave_out_figures, train

from app.attacks.protocols.audit import Audit
from app.auditing import AttackSuite
from app.commands.fit import fit
from app.common.files import hold_lock
from app.federation.hooks import FederatedCallback
from app.results.attacks.membership import AttackRecord, scores_by_label
from app.results.run.attempts import ATTEMPT
from app.results.run.folder import LOCK

pytestmark = pytest.mark.usefixtures("no_figures")

MIA = (
    *("--attacks.mia", "MembershipInference", "--attacks.mia.controls", "skip", "--attacks.mia.shadows.count", "4"),
    *("--attacks.mia.calibrate", "false"),
)
QUICK = ("--shadows.count", "4", "--controls", "skip")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A finished run that was attacked at its end."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        names = "[yeom, lira-offline, lira-online]"
        calibrated = ("--attacks.mia.attacks", names, "--attacks.mia.calibrate", "true")
        return train(tmp_path_factory.mktemp("runs"), "a", *MIA, *calibrated)


def scores_of(run):
    """Scores of all membership attacks in a run's folder, by label."""
    return {label: found.scores for label, found in scores_by_label(AttackRecord.load_all(run)).items()}


def assert_equal_scores(before, after):
    """The same results with the same scores, bit for bit."""
    assert set(before) == set(after)
    for label, scores in before.items():
        assert np.array_equal(after[label], scores), label


def test_results_of_the_end_of_the_run(attacked, capsys):
    """Scores, tables, figures and a summary."""
    names = {path.name for path in (attacked / "attacks").iterdir()}
    attacks, kinds = ("yeom", "lira-offline", "lira-online"), ("global", "uploads")
    labels = [f"{attack}.{kind}" for attack in attacks for kind in kinds]
    assert {f"{label}.npz" for label in labels} <= names
    assert {"clients.csv", "vulnerable.csv", "roc.png", "leakage.png"} <= names
    summary = json.loads((attacked / "summary.json").read_text())
    assert all(f"attacks/{label}/auc" in summary["attacks"] for label in labels)
    with np.load(attacked / "attacks" / "yeom.uploads.npz", allow_pickle=False) as arrays:
        assert {"scores", "members", "samples", "clients"} == set(arrays.files)


def test_later_attacks_give_the_same_scores(attacked):
    """From the transcript alone, bit for bit; other results stay."""
    before = scores_of(attacked)
    assert exit_code("attack", str(attacked), "--attacks", "yeom,lira-online", *QUICK) == 0
    assert {"yeom.uploads", "lira-online.global"} < set(before)
    assert_equal_scores(before, scores_of(attacked))


def test_further_attacks_are_added(attacked):
    """The summary of the run has them, beside what it had."""
    before = json.loads((attacked / "summary.json").read_text())
    assert exit_code("attack", str(attacked), "--attacks=entropy", "--targets", "uploads", *QUICK) == 0
    after = json.loads((attacked / "summary.json").read_text())
    assert "attacks/entropy.uploads/auc" in after["attacks"]
    numbers = {name: value for name, value in before["attacks"].items() if name != "headline"}
    assert numbers.items() <= after["attacks"].items()
    assert before["final"] == after["final"]


def test_shadows_are_kept_beside_the_runs(attacked):
    """Another run of the same data and recipe finds them."""
    assert list((attacked.parent / ".cache" / "shadows").glob("*.npz"))


def test_on_the_way(tmp_path):
    """Every second round, and the end; rounds that are attacked are kept."""
    folder = train(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yeom]", "--attacks.mia.every", "2", rounds=5)
    labels = {record.label for record in AttackRecord.load_all(folder)}
    assert labels == {f"yeom.{kind}{when}" for kind in ("global", "uploads") for when in ("@2", "@4", "")}
    assert {path.name for path in (folder / "transcript").glob("round-*")} >= {"round-00002.npz", "round-00004.npz"}


def test_chosen_rounds(tmp_path):
    """Rounds 1 and 3 of 4 are kept and attacked."""
    folder = train(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yeom]", "--attacks.mia.rounds", "[1, 3]", rounds=4)
    labels = {record.label for record in AttackRecord.load_all(folder)}
    assert {"yeom.uploads", "yeom.uploads@1", "yeom.uploads@3"} <= labels


def test_sealed_uploads(tmp_path, capsys):
    """N/A with the reason, on the terminal and in the files."""
    folder = train(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yeom]", "--defenses.seal", "run_kit.Seal")
    told = capsys.readouterr().out
    assert "the server sees ciphertext only" in told
    assert "attacks/ holds clients.csv" in told
    record = json.loads((folder / "attacks" / "yeom.uploads.json").read_text())
    assert "ciphertext" in json.dumps(record)
    assert not (folder / "attacks" / "yeom.uploads.npz").exists()


class Marked(FederatedCallback):
    """A defense that counts the federations it has worked in, and stops all learning."""

    federations: set[int] = set()  # noqa: RUF012

    def on_client_update(self, trainer, federation, update):
        """Send back what was received."""
        self.federations.add(id(federation))
        update.vector.copy_(update.received)


class Zeroing(FederatedCallback):
    """Zeroes the half of an upload that moved least."""

    def traits(self):
        """What an attacker may adapt to."""
        return frozenset({"pruned-uploads"})

    def on_client_update(self, trainer, federation, update):
        """All cells are parameters."""
        moves = (update.vector - update.received).abs()
        update.vector[moves.argsort()[: len(moves) // 2]] = 0


def test_attackers_who_know_the_defense(tmp_path, capsys):
    """At the end of the run and later from disk, bit for bit; `--adaptive false` leaves them out."""
    options = ("--defenses.zero", "test_attack_command.Zeroing", "--attacks.mia.attacks", "[yeom]")
    folder = train(tmp_path, "a", *MIA, *options, rounds=2)
    labels = ["yeom.global", "yeom.uploads", "yeom.uploads+refilled"]
    assert [record.label for record in AttackRecord.load_all(folder)] == labels
    before = scores_of(folder)
    told = json.loads((folder / "summary.json").read_text())["attacks"]
    assert told["headline"]["uploads"]["auc"] == max(told[f"attacks/{label}/auc"] for label in labels[1:])
    for path in (folder / "attacks").glob("yeom.uploads*"):
        path.unlink()
    quick = ("--attacks", "yeom", "--calibrate", "false", *QUICK)
    assert exit_code("attack", str(folder), "--trust", *quick, "--adaptive", "false") == 0
    assert [record.label for record in AttackRecord.load_all(folder)] == labels[:2]
    capsys.readouterr()
    assert exit_code("attack", str(folder), *quick, "--trust") == 0
    assert "an attacker who" in capsys.readouterr().out
    assert list(before) == labels
    assert_equal_scores(before, scores_of(folder))


@pytest.mark.slow
def test_federated_shadows_repeat_the_defense(tmp_path, monkeypatch):
    """Four shadow federations and the attacked one, all defended; nothing is learnt, so nothing leaks."""
    monkeypatch.setattr(Marked, "federations", set())
    options = ("--defenses.marked", "test_attack_command.Marked", "--attacks.mia.attacks", "[yeom, lira-online]")
    federated = ("--attacks.mia.shadows.mode", "federated")
    folder = train(tmp_path, "a", *MIA, *options, *federated)
    assert len(Marked.federations) == 5
    records = {record.label: record for record in AttackRecord.load_all(folder)}
    assert abs(records["lira-online.global"].leakage.auc.value - 0.5) < 0.15
    assert records["lira-online.global"].conditions.shadows == "4 federated"


def test_runs_that_cannot_be_attacked(tmp_path, capsys, attacked):
    """Each refusal says what to do."""
    assert exit_code("attack", str(tmp_path / "nothing")) == 2
    assert "is no run" in capsys.readouterr().err
    bare = train(tmp_path, "bare", "--transcript.last", "0", rounds=1)
    assert exit_code("attack", str(bare)) == 2
    assert "--transcript.last 2" in capsys.readouterr().err
    (bare / "summary.json").unlink()
    assert exit_code("attack", str(bare)) == 2
    assert "is not finished" in capsys.readouterr().err


def test_help_explains_the_options_of_all_kinds(capsys):
    """attack --help, without a run: every option of the suite, and those of shadow models."""
    assert exit_code("attack", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: rampart attack RUN [--attacks NAME,NAME ...]")
    text = text.partition("positional arguments:")[2]
    meanings = {
        "attacks": "dotted names of your own classes, or class_path with init_args",
        "targets": "`global` (the released model, seen from outside)",
        "rounds": "counted from 1",
        "shadows.mode": "`federated` repeats the whole federation",
        "shadows.count": "shadows per target, at least 2",
        "protocol": "the paper whose evaluation is to be repeated",
        "calibrate": "choose a threshold on a shadow model",
        "controls": "`withhold` the numbers of a membership attack that fails a control",
        "adaptive": "an adversary who knows the run's defenses",
        "reading": "how a malicious server extracts images",
        "score": "the published evaluation",
        "insist": "attack also where it cannot succeed",
        "colluding": "participants, drawn at random, that join the adversaries",
    }
    assert {name.partition(".")[0] for name in meanings} == {*inspect.signature(AttackSuite).parameters}
    for name, meaning in meanings.items():
        at = text.find(f"--{name} ")
        assert at >= 0, name
        assert meaning in text[at : at + 400], name


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--attacks", "lira-onlin"), "did you mean lira-online"),
        (("--attacks", "nowhere.Attack"), "module.Class"),
        (("--targets", "uplaods"), "uploads"),
        (("--shadows.count", "1"), "it must be int >= 2"),
        (("--rounds", "0"), "it must be int >= 1"),
        (("--protocol", "paper"), "mapp-fl"),
        (("--shadow.count", "4"), "--shadows.count"),
    ],
)
def test_wrong_options(attacked, capsys, options, hint):
    """Refused before anything is built, with the nearest right choice."""
    assert exit_code("attack", str(attacked), *options) == 2
    assert hint in capsys.readouterr().err


def test_wrong_attack_in_fit(tmp_path, capsys):
    """The same refusal before any training."""
    arguments = command(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yoem]")
    assert exit_code("fit", *arguments) == 2
    assert "did you mean yeom" in capsys.readouterr().err


def test_an_interrupted_attack_is_made_up_for(tmp_path, monkeypatch):
    """Killed while attacking, the same command attacks again without training again."""

    def stop(*_):
        raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr("app.attacks.protocols.audit.Audit.findings", stop)
        assert fit(command(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yeom]")) == 130
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it switched off
    assert not (tmp_path / "a" / "summary.json").exists()
    folder = train(tmp_path, "a", *MIA, "--attacks.mia.attacks", "[yeom]")
    assert (folder / "attacks" / "yeom.uploads.npz").is_file()


class Counted:
    """Counts the attacks that are made, and acts in the place of one of them."""

    def __init__(self, monkeypatch, at=0, act=None):
        self.made, self.at, self.act, self.run = [], at, act, Audit._run
        monkeypatch.setattr(Audit, "_run", lambda *arguments: self(*arguments))

    def __call__(self, audit, context, sources, planned):
        """One attack on one kind of target."""
        if len(self.made) + 1 == self.at:
            self.act()
        self.made.append(f"{planned.attack.name}.{planned.selection.kind}")
        return self.run(audit, context, sources, planned)


def test_attacks_at_the_end_of_a_run_that_are_interrupted(attacked, monkeypatch, capsys):
    """`rampart attack` names the command that finishes them; it repeats none, and ends like a run in one go."""
    handler, folder = signal.getsignal(signal.SIGINT), attacked.with_name("interrupted")  # shadows are there already
    arguments = command(folder.parent, folder.name, *MIA, "--attacks.mia.attacks", "[yeom, lira-offline, lira-online]")
    with monkeypatch.context() as patch:
        Counted(patch, 4, lambda: signal.raise_signal(signal.SIGHUP))
        assert exit_code("fit", *arguments) == 130
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it switched off
    capsys.readouterr()
    assert exit_code("attack", str(folder)) == 2
    said = capsys.readouterr().err
    assert f"--run.root {folder.parent} --run.name interrupted; its rounds are not trained again" in said
    assert "are kept: yeom.global, lira-offline.global, lira-online.global\n" in said
    counted = Counted(monkeypatch)
    assert exit_code("fit", *arguments) == 0
    assert counted.made == ["yeom.uploads", "lira-offline.uploads", "lira-online.uploads"]
    assert not (folder / ATTEMPT).exists()
    audited, found = scores_of(attacked), scores_of(folder)
    assert len(found) == 6
    assert_equal_scores({label: audited[label] for label in found}, found)
    summary = json.loads((folder / "summary.json").read_text())
    assert "attacks/lira-online.global/auc" in summary["attacks"]


def test_an_attack_that_is_interrupted_goes_on(attacked, monkeypatch, capsys):
    """The same command repeats nothing that is done; another one starts anew."""
    folder = attacked.with_name("copy")  # beside the run, where its shadows are
    shutil.copytree(attacked, folder, ignore=shutil.ignore_patterns("attacks"))
    arguments = ("attack", str(folder), "--attacks", "yeom,lira-online", *QUICK)
    with monkeypatch.context() as patch:
        Counted(patch, 2, lambda: signal.raise_signal(signal.SIGHUP))
        assert exit_code(*arguments) == 130
    assert "the same command goes on with the attacks that are left" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        counted = Counted(patch)
        assert exit_code(*arguments) == 0
        assert counted.made == ["lira-online.global", "yeom.uploads", "lira-online.uploads"]
    assert "its results are kept: yeom.global\n" in capsys.readouterr().out
    assert {"yeom.global", "lira-online.uploads"} <= set(scores_of(folder))
    counted = Counted(monkeypatch)
    assert exit_code(*arguments, "--targets", "global") == 0
    assert counted.made == ["yeom.global", "lira-online.global"]


def test_no_second_attack_beside_the_first(attacked, monkeypatch, capsys):
    """Refused before it opens the tracker, which would replace what the first one tracks."""
    monkeypatch.setattr("app.commands.attack.run_tracker", lambda *_: pytest.fail("it is opened"))
    with hold_lock(attacked / LOCK):
        assert exit_code("attack", str(attacked), "--attacks", "yeom", *QUICK) == 2
    said = capsys.readouterr().err
    assert "is writing to" in said
    assert "wait for it or stop it" in said


def test_a_papers_protocol(attacked, capsys):
    """Its results lie beside those of the audit under the paper's name, with the numbers that the paper reports."""
    assert exit_code("attack", str(attacked), "--protocol", "MappFL", "--protocol.exclude_known", "true") == 0
    assert "as the paper reports it:" in capsys.readouterr().out
    records = {record.label: record for record in AttackRecord.load_all(attacked)}
    assert {"mapp-fl.yeom.uploads", "mapp-fl.yeom.global", "yeom.uploads"} <= set(records)
    assert records["mapp-fl.yeom.uploads"].figures[0].name == "Adv %"
    assert exit_code("attack", str(attacked), "--protocol", "mapp-fl", "--attacks", "nasr") == 2
    assert "choose from yeom" in capsys.readouterr().err

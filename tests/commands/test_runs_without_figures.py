"""`--run.figures false`, as a comparison's runs have it: no figure that a report would draw again."""

from run_kit import exit_code, train

ATTACK = (
    *("--attacks.mia", "MembershipInference", "--attacks.mia.controls", "skip"),
    "--attacks.mia.attacks",
    "[yeom]",
)


def test_tables_without_figures(tmp_path):
    """Tables and scores are there, figures are not; a later attack draws its own."""
    folder = train(tmp_path, "a", *ATTACK, "--run.figures", "false", rounds=1)
    assert not list(folder.rglob("*.png"))
    assert {"partition.csv", "everyone.csv"} <= {path.name for path in folder.iterdir()}
    assert (folder / "attacks" / "clients.csv").is_file()
    assert exit_code("attack", str(folder), "--attacks", "yeom", "--controls", "skip") == 0
    assert (folder / "attacks" / "leakage.png").is_file()

"""Names of runs stand for folders below the root of all runs, and for nothing else."""

import pytest
from run_kit import command, exit_code

from app.common.errors import UserError
from app.results.run.folder import RunFolder, RunSettings

REFUSED = {
    "..": "leads out",
    ".": "leads out",
    "a/../..": "leads out",
    "a/../b": "leads out",
    "/tmp/elsewhere": "empty part",
    "a//b": "empty part",
    "a/": "empty part",
    "": "empty",
    ".cache": "hidden",
    "exp/.cache": "hidden",
    ".files": "hidden",
    "a\nb": "cannot be shown",
    "a\0b": "cannot be shown",
    "a\x1b[31m": "cannot be shown",
    "x" * 5000: "5,000 bytes",
    "a/" * 2500 + "a": "the path of its folder has",
    "ä" * 150: "300 bytes",
}


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: repr(name[:12]))
def test_refused_names(name, tmp_path):
    """With the reason and what to write instead; nothing is made."""
    with pytest.raises(UserError, match=REFUSED[name]) as error:
        RunFolder.choose(RunSettings(str(tmp_path / "runs"), name), "digits")
    problem = error.value.problems[0]
    assert problem.consequence
    assert problem.remedy
    assert len(problem.cause) < 400
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mine", "exp/sub", "a.b-c_d+e", "Läufe", "a b"])
def test_allowed_names(name, tmp_path):
    """Also folders within folders."""
    assert RunFolder.choose(RunSettings(str(tmp_path), name), "digits").path == tmp_path / name


def test_a_name_that_is_a_link_out_of_the_root(tmp_path):
    """Paths are followed to where they lead before they are judged; a root that is a link is the user's choice."""
    for folder in ("runs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "out").symlink_to(tmp_path / "elsewhere")
    for name in ("out", "out/inner"):
        with pytest.raises(UserError, match="is a link out of"):
            RunFolder.choose(RunSettings(str(tmp_path / "runs"), name), "digits")
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    assert RunFolder.choose(RunSettings(str(tmp_path / "root"), "a"), "digits").path == tmp_path / "root" / "a"


@pytest.mark.parametrize("root", ["r\0", "r" * 5000, "r/" * 2500], ids=["null", "long", "deep"])
def test_roots_that_no_system_takes(root, tmp_path, capsys):
    """One error with a remedy, no traceback."""
    assert exit_code("fit", *command(tmp_path / root, "a", rounds=1)) == 2
    assert "remedy:" in capsys.readouterr().err


def test_the_command_refuses_a_name_before_it_writes(tmp_path, capsys):
    """A foreign folder beside the root stays as it is, with or without overwriting."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for name in ("..", "../thesis", str(tmp_path / "thesis")):
        assert exit_code("fit", *command(tmp_path / "runs", name, "--run.overwrite", "true", rounds=1)) == 2
        assert "--run.name is" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis", "chapter.tex"]

"""The ledger's file: every whole line counts, a line that was cut short announced nothing that left."""

import pytest
import yaml

from app.common.errors import UserError
from app.privacy.accounting import Steps
from app.privacy.ledger import Spend
from app.results.run.folder import RunFolder
from app.results.run.ledger import LEDGER, append_spend, read_spends

FIRST, SECOND = (Spend("DPSGD", round_, "", {0: Steps(1.0, 0.2, 5)}) for round_ in range(2))
CONFIG = {"trainer": {"max_epochs": 3}, "model": {}, "data": {}, "tracking": "disabled"}


def test_lines_are_read_in_order(tmp_path):
    """None where there is no file."""
    assert read_spends(tmp_path) == []
    for spend in (FIRST, SECOND, FIRST):
        append_spend(tmp_path, spend)
    assert read_spends(tmp_path) == [FIRST, SECOND, FIRST]


def test_a_last_line_that_was_cut_short_is_deleted(tmp_path):
    """The next one starts on a line of its own."""
    append_spend(tmp_path, FIRST)
    with (tmp_path / LEDGER).open("a") as file:
        file.write('{"mechanism": "DPSGD", "round": 2, "att')
    assert read_spends(tmp_path) == [FIRST]
    append_spend(tmp_path, SECOND)
    assert read_spends(tmp_path) == [FIRST, SECOND]


@pytest.mark.parametrize(
    "line", ["{}", "nonsense", '{"mechanism": "DPSGD", "round": 1, "attempt": "", "spent": [[0]]}']
)
def test_any_other_line_that_cannot_be_read_is_an_error(line, tmp_path):
    """What it announced may have left."""
    append_spend(tmp_path, FIRST)
    with (tmp_path / LEDGER).open("a") as file:
        file.write(line + "\n")
    append_spend(tmp_path, SECOND)
    with pytest.raises(UserError, match=r"line 2 of .*ledger\.jsonl(?s:.*)not known(?s:.*)overwrite"):
        read_spends(tmp_path)


def test_resuming_forgets_no_line(tmp_path):
    """Rounds that are recorded again were released before."""
    for spend in (FIRST, SECOND):
        append_spend(tmp_path, spend)
    RunFolder(tmp_path).forget_after(0)
    assert read_spends(tmp_path) == [FIRST, SECOND]


def test_another_configuration_does_not_take_over_a_ledger(tmp_path):
    """Even before the first checkpoint; to overwrite starts with a fresh one."""
    folder = RunFolder(tmp_path / "a")
    folder.claim(CONFIG, overwrite=False)
    append_spend(folder.path, FIRST)
    folder.claim(CONFIG, overwrite=False)
    other = {**CONFIG, "defenses": {"dp": {"class_path": "DPSGD", "init_args": {"noise": 3.0}}}}
    with pytest.raises(UserError, match="another configuration"):
        folder.claim(other, overwrite=False)
    assert read_spends(folder.path) == [FIRST]
    folder.claim(other, overwrite=True)
    assert read_spends(folder.path) == []
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == other

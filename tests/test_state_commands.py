"""``rejex-stream state``: what is stored is seen, dropped and moved, and no verdict changes."""

import fcntl
import json
import os
import shutil
import sqlite3

import pytest
from rejex_connectors.folder_snapshots import FolderSnapshotStore
from rejex_connectors.signed_snapshots import SealedStore

from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.types import Partition
from tests.pump import feed, pump_toml

ONE = Partition("feed.csv", 0)


def config(folder):
    places = f'[state]\nfolder = "{folder}"\n[output]\nverdicts = "{folder}-verdicts.jsonl"\n'
    return pump_toml(window=100, more=places)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / f"{folder}.toml").write_text(config(folder))
    return tmp_path


def verdicts(folder, name):
    return (folder / f"{name}-verdicts.jsonl").read_bytes()


def undisturbed(here, rejex, n):
    shutil.rmtree(here / "plain", ignore_errors=True)
    (here / "plain-verdicts.jsonl").unlink(missing_ok=True)
    (here / "plain.toml").write_text(config("plain"))
    assert rejex("run", "plain.toml")[0] == 0
    return verdicts(here, "plain")


def half_way(here, rejex):
    feed(here, 0, 400)
    assert rejex("run", "one.toml")[0] == 0


# ------------------------------------------------------------------------------ list and show
def test_what_is_stored_is_listed_and_shown(here, rejex):
    half_way(here, rejex)
    status, said, _ = rejex("state", "list", "one.toml")
    assert status == 0
    assert "feed.csv-0" in said
    assert "400" in said
    (row,) = json.loads(rejex("state", "list", "one.toml", "--output", "json")[1])["partitions"]
    assert (row["committed"], row["next_offset"], row["sensors"], row["what"]) == (400, 400, 2, "")
    (told,) = json.loads(rejex("state", "show", "one.toml", "--output", "json")[1])
    assert told["events"] == 400
    assert told["limits"]["max_keys"] == 100_000
    assert told["decision"]["contamination"] == 0.05
    assert set(told["largest_streams"]) == {"p0", "p1"}
    assert told["silent_for_longest"]["p0"] == "2023-11-14T22:19:58+00:00"
    assert "numpy" in told["made_with"]
    shown = rejex("state", "show", "one.toml", "--partition", "feed.csv-0")[1]
    assert "largest streams" in shown
    assert not set("{}=[]'") & set(shown), "for people, not as Python has it"
    assert "True" not in shown


def test_names_of_sensors_reach_no_terminal_as_they_are(here, rejex):
    (here / "feed.csv").write_text("t,id,flow\n1,\x1b[31mred,2.5\n")
    assert rejex("run", "one.toml")[0] == 0
    assert "\x1b" not in rejex("state", "show", "one.toml")[1]


def test_where_nothing_is_stored_that_is_said_and_no_folder_made(here, rejex):
    for command in ("list", "show", "drop"):
        more = ["--all", "--dry-run"] if command == "drop" else []
        status, _, said = rejex("state", command, "one.toml", *more)
        assert (status, "nothing is stored" in said) == (1, True)
    assert not (here / "one").exists()


def test_a_pipeline_that_keeps_nothing_and_a_partition_that_is_not_there(here, rejex):
    half_way(here, rejex)
    status, _, said = rejex("state", "show", "one.toml", "--partition", "feed.csv-1")
    assert status == 2
    assert said.endswith("there is no partition 'feed.csv-1'; there are feed.csv-0.\n")
    text = (here / "one.toml").read_text() + "[x]\n"
    (here / "none.toml").write_text(
        text.replace('folder = "one"', "resume = false").replace("[x]", "")
    )
    status, _, said = rejex("state", "list", "none.toml")
    assert (status, "keeps no state" in said) == (2, True)


# ----------------------------------------------------------------------------------- drop
DECIDED = CommandJournal(ONE, None, ["feed.csv"]).encoded(None)


@pytest.mark.thorough
def test_dropped_it_is_rebuilt_from_the_input_and_no_verdict_changes(here, rejex):
    half_way(here, rejex)
    FolderSnapshotStore(here / "one").save_journal(ONE, DECIDED)
    status, said, _ = rejex("state", "drop", "one.toml", "--all", "--dry-run")
    assert "would be dropped; the next run judges records 0 to 400 again, silently" in said
    assert FolderSnapshotStore(here / "one").load(ONE, 400) is not None
    status, said, _ = rejex("state", "drop", "one.toml", "--partition", "feed.csv-0")
    assert (status, said.startswith("feed.csv-0: dropped")) == (0, True)
    assert FolderSnapshotStore(here / "one").load(ONE, 400) is None
    assert FolderSnapshotStore(here / "one").load_journal(ONE) == DECIDED
    feed(here, 400, 600)
    assert rejex("run", "one.toml")[0] == 0
    assert verdicts(here, "one") == undisturbed(here, rejex, 600)
    rejex("state", "drop", "one.toml", "--all", "--schemas")
    assert FolderSnapshotStore(here / "one").load_journal(ONE) is None


def test_drop_asks_which(here, rejex):
    half_way(here, rejex)
    for which in ([], ["--all", "--partition", "feed.csv-0"]):
        status, _, said = rejex("state", "drop", "one.toml", *which)
        assert (status, "--partition TOPIC-NUMBER, or --all" in said) == (2, True)


def test_nothing_is_changed_under_a_run(here, rejex):
    half_way(here, rejex)
    with (here / "one" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for command in (["drop", "one.toml", "--all"], ["export", "one.toml", "x"]):
            status, _, said = rejex("state", *command)
            assert (status, "in use by another process" in said) == (1, True)
        assert rejex("state", "list", "one.toml")[0] == 0


@pytest.mark.thorough
def test_a_damaged_snapshot_is_listed_refused_with_the_command_and_dropped_by_it(here, rejex):
    half_way(here, rejex)
    (db,) = (here / "one").glob("*-snapshots.db")
    content = bytearray(db.read_bytes())
    content[:100] = b"x" * 100
    db.write_bytes(content)
    assert "damaged" in rejex("state", "list", "one.toml")[1]
    feed(here, 400, 500)
    status, _, said = rejex("run", "one.toml")
    assert (status, "`rejex-stream state drop`" in said) == (1, True)
    assert rejex("state", "drop", "one.toml", "--all")[0] == 0
    assert rejex("run", "one.toml")[0] == 0
    assert verdicts(here, "one") == undisturbed(here, rejex, 500)


# ------------------------------------------------------------------------- export and import
def test_moved_to_another_folder_it_goes_on_without_a_different_verdict(here, rejex):
    half_way(here, rejex)
    status, said, _ = rejex("state", "export", "one.toml", "moved.state")
    assert said == "feed.csv-0: exported at offset 400, committed up to 400.\n"
    status, said, _ = rejex("state", "import", "two.toml", "moved.state", "--dry-run")
    assert "would be imported at offset 400; the next run goes on at 400" in said
    status, said, _ = rejex("state", "import", "two.toml", "moved.state")
    assert (status, "imported at offset 400" in said) == (0, True)
    before = verdicts(here, "one")
    feed(here, 400, 700)
    assert rejex("run", "two.toml")[0] == 0
    assert before + verdicts(here, "two") == undisturbed(here, rejex, 700)


@pytest.mark.thorough
def test_a_snapshot_behind_what_is_committed_is_moved_with_both_offsets(here, rejex):
    """As a crash leaves it: what lies in between is replayed on the other side, silently."""
    half_way(here, rejex)
    (here / "then").mkdir()
    for path in (here / "one").glob("*-snapshots.db"):
        shutil.copy(path, here / "then" / path.name)
    feed(here, 400, 500)
    assert rejex("run", "one.toml")[0] == 0
    for path in (here / "then").iterdir():
        shutil.copy(path, here / "one" / path.name)
    said = rejex("state", "export", "one.toml", "moved.state")[1]
    assert "exported at offset 400, committed up to 500" in said
    rejex("state", "import", "two.toml", "moved.state")
    feed(here, 500, 700)
    assert rejex("run", "two.toml")[0] == 0
    assert verdicts(here, "one") + verdicts(here, "two") == undisturbed(here, rejex, 700)


@pytest.mark.thorough
def test_a_lost_snapshot_is_brought_back_and_one_from_the_future_is_not(here, rejex):
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "at400")
    feed(here, 400, 500)
    assert rejex("run", "one.toml")[0] == 0
    rejex("state", "drop", "one.toml", "--all")
    status, said, _ = rejex("state", "import", "one.toml", "at400")
    assert "imported at offset 400; the next run goes on at 500" in said
    rejex("state", "export", "one.toml", "later")
    shutil.copytree(here / "one", here / "two")
    commit = json.loads((here / "two" / "commit.json").read_text())
    commit["next_offsets"][0][2] = 300
    (here / "two" / "commit.json").write_text(json.dumps(commit))
    status, _, said = rejex("state", "import", "two.toml", "at400")
    assert (status, "committed up to offset 300, before the 400" in said) == (1, True)
    feed(here, 500, 600)
    assert rejex("run", "one.toml")[0] == 0
    assert verdicts(here, "one") == undisturbed(here, rejex, 600)


def test_outputs_that_are_there_are_gone_on_with(here, rejex):
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "moved")
    (here / "two-verdicts.jsonl").write_bytes(verdicts(here, "one"))
    rejex("state", "import", "two.toml", "moved")
    feed(here, 400, 500)
    assert rejex("run", "two.toml")[0] == 0
    assert verdicts(here, "two") == undisturbed(here, rejex, 500)


def test_a_changed_state_folder_cuts_no_verdict_off(here, rejex):
    """They were cut off, and all records judged again."""
    half_way(here, rejex)
    text = (here / "one.toml").read_text().replace('folder = "one"', 'folder = "elsewhere"')
    (here / "moved.toml").write_text(text)
    before = verdicts(here, "one")
    status, _, said = rejex("run", "moved.toml")
    assert (status, "knows nothing of them" in said, "state export OLD" in said) == (2, True, True)
    assert verdicts(here, "one") == before
    rejex("state", "export", "one.toml", "moved")
    assert rejex("state", "import", "moved.toml", "moved")[0] == 0
    feed(here, 400, 500)
    assert rejex("run", "moved.toml")[0] == 0
    assert verdicts(here, "one") == undisturbed(here, rejex, 500)


def test_another_file_of_the_same_name_is_found_out_after_a_move(here, rejex):
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "moved")
    rejex("state", "import", "two.toml", "moved")
    text = (here / "feed.csv").read_text().replace("1700000000,p0", "1699999999,p0")
    (here / "feed.csv").write_text(text)
    assert "is not the file that was read before" in rejex("run", "two.toml")[2]


def test_a_file_that_was_altered_is_refused(here, rejex):
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "moved")
    whole = (here / "moved").read_bytes()
    for at in (0, 9, 60, -1):
        content = bytearray(whole)
        content[at] ^= 1
        (here / "moved").write_bytes(content)
        status, _, said = rejex("state", "import", "two.toml", "moved")
        assert (status, said.count("\n")) == (1, 1)
        assert not (here / "two" / "commit.json").exists()
    assert rejex("state", "export", "one.toml", "moved")[0] == 2, "it is never written over"


def test_under_a_key_the_file_is_sealed_with_it(here, rejex):
    (here / "key").write_bytes(os.urandom(32).hex().encode())
    for name in ("one", "two"):
        path = here / f"{name}.toml"
        path.write_text(path.read_text().replace("[output]", 'seal_key_file = "key"\n[output]'))
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "moved")
    shutil.copy(here / "key", here / "right")
    (here / "key").write_bytes(b"of somebody else, long enough")
    assert "was not sealed with the key" in rejex("state", "import", "two.toml", "moved")[2]
    shutil.copy(here / "right", here / "key")
    assert rejex("state", "import", "two.toml", "moved")[0] == 0
    found = SealedStore(FolderSnapshotStore(here / "two"), (here / "key").read_bytes()).load(
        ONE, 400
    )
    assert found is not None
    feed(here, 400, 450)
    assert rejex("run", "two.toml")[0] == 0


def test_nothing_to_export_and_nothing_of_ours_to_import(here, rejex):
    half_way(here, rejex)
    rejex("state", "export", "one.toml", "moved")
    rejex("state", "drop", "one.toml", "--all")
    assert "nothing to export" in rejex("state", "export", "one.toml", "again")[2]
    text = (here / "two.toml").read_text().replace("feed.csv", "other.csv")
    (here / "two.toml").write_text(text)
    assert (
        "no partition of this pipeline's input" in rejex("state", "import", "two.toml", "moved")[2]
    )
    assert "cannot be read" in rejex("state", "import", "one.toml", "not-there")[2]


def test_a_lost_state_names_the_command_that_brings_it_back(here, rejex):
    half_way(here, rejex)
    (db,) = (here / "one").glob("*-snapshots.db")
    with sqlite3.connect(db) as connection:
        connection.execute("DELETE FROM records")
    known = json.loads((here / "one" / "input.json").read_text()) | {"first_offset": 3}
    (here / "one" / "input.json").write_text(json.dumps(known))
    status, _, said = rejex("run", "one.toml")
    assert (status, "`rejex-stream state import`" in said) == (1, True)
    said = rejex("state", "drop", "one.toml", "--all")[1]
    assert "records before 3 are gone" in said
    assert 'state.lost_state = "restart"' in said


# ------------------------------------------------------------- what a changed config would do
def against(rejex, name="one.toml"):
    status, said, _ = rejex("validate", name, "--against-state", "--output", "json")
    (outlook,) = json.loads(said)["state"]
    return status, outlook["outcome"], outlook["why"]


def test_what_a_config_would_do_with_what_is_stored_is_what_it_does(here, rejex):
    assert against(rejex) == (0, "begins", "there is no state folder one yet: nothing is stored")
    assert not (here / "one").exists()
    half_way(here, rejex)
    before = {path: path.read_bytes() for path in (here / "one").rglob("*") if path.is_file()}
    assert against(rejex) == (0, "goes on", "at offset 400, with the state of offset 400")
    text = (here / "one.toml").read_text()

    def changed(old, new, name="changed.toml"):
        assert old in text
        (here / name).write_text(text.replace(old, new))
        return against(rejex, name)

    status, outcome, why = changed("tolerance = 4", "tolerance = 5")
    assert (status, outcome) == (0, "goes on")
    assert why.endswith("; from there on by another decision (tolerance 4.0 -> 5.0)")
    status, outcome, why = changed("window = 100", "window = 120")
    assert (status, outcome, "window" in why) == (1, "refused", True)
    assert why in rejex("run", "changed.toml")[2]
    status, outcome, why = changed('channels = ["flow"]', 'channels = ["t2"]')
    assert (status, outcome) == (1, "refused")
    assert "for the channels ['flow'], not ['t2']" in why
    counted = '[channels.flow]\nkind = "counter"\n[output]'
    status, outcome, why = changed("[output]", counted)
    assert (status, outcome) == (1, "refused")
    assert "for the counters (), not (0,)" in why
    status, outcome, why = changed('folder = "one"', 'folder = "other"')
    assert (status, outcome, "bring the state along" in why) == (1, "refused", True)
    said = rejex("validate", "changed.toml", "--against-state")[1]
    assert "feed.csv refused: " in said
    assert before == {p: p.read_bytes() for p in (here / "one").rglob("*") if p.is_file()}
    assert rejex("state", "drop", "one.toml", "--all")[0] == 0
    assert against(rejex) == (0, "is rebuilt", "records 0 to 400 are judged again, silently")

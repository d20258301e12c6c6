"""An extra that is not installed: ``validate`` says which, before anything is run."""

import sys

import pytest

from rejex_stream.cli import main

KAFKA = """
[input]
kind = "kafka"
topics = ["pumps"]
channels = ["flow"]
{input}
[rejection]
contamination = 0.05
tolerance = 8
{more}
"""
FILE = """
[input]
path = "{path}"
channels = ["flow"]
time = "t"
[rejection]
contamination = 0.05
tolerance = 8
"""
REGISTRY = '[schema_registry]\nurl = "http://localhost:8081"\n'
CASES = {
    "confluent_kafka": (KAFKA.format(input="", more='[kafka]\nclient = "confluent"'), "confluent"),
    "fastavro": (KAFKA.format(input='format = "avro"', more=REGISTRY), "registry"),
    "grpc_tools": (KAFKA.format(input='format = "protobuf"', more=REGISTRY), "registry"),
    "openpyxl": (FILE.format(path="plant.xlsx"), "excel"),
    "pyarrow": (FILE.format(path="plant.parquet"), "parquet"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("module", CASES)
def test_validate_names_the_extra_that_a_config_needs(module, tmp_path, capsys, monkeypatch):
    text, extra = CASES[module]
    path = tmp_path / "p.toml"
    path.write_text(text)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["validate", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"needs {module}" in said
    assert f"'rejex-stream[{extra}]'" in said


@pytest.mark.parametrize(("more", "said"), [
    ('delimiter = ";"', "delimiter is for files of text, but the format is 'excel'"),
    ("follow = true", "follow is for files of text"),
    ('format = "csv"\nsheet = "x"', "sheet is for Excel workbooks"),
    ('format = "parquet"\ncolumns = ["t", "flow"]', "this format names its fields"),
])  # fmt: skip
def test_what_a_workbook_cannot_be_is_refused(more, said, tmp_path, capsys):
    path = tmp_path / "p.toml"
    path.write_text(FILE.format(path="plant.xlsx").replace("[rejection]", f"{more}\n[rejection]"))
    assert main(["validate", str(path)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())

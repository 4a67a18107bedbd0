"""``gpuipc-doctor schema``."""

from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.cli.schema import schemas


@pytest.mark.parametrize("name", schemas())
def test_each_listed_schema_is_printed_whole(name: str) -> None:
    assert name in CliRunner().invoke(cli, ["schema"]).stdout.splitlines()
    printed = CliRunner().invoke(cli, ["schema", name])
    jsonschema.Draft202012Validator.check_schema(json.loads(printed.stdout))


def test_an_unknown_name_exits_with_2_and_the_nearest_name() -> None:
    result = CliRunner().invoke(cli, ["schema", "reprot"])
    assert result.exit_code == 2
    assert "no schema 'reprot'; did you mean 'report'?" in result.stderr

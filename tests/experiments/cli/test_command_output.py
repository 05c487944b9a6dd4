"""Commands write where nothing is lost."""

from __future__ import annotations

import pytest

from experiments.cli.command_output import check_output
from fedge.errors import BadInput


def test_a_new_file_and_earlier_output_may_be_written(tmp_path):
    page = tmp_path / "page.html"
    check_output("--html", page, "<!doctype html")
    page.write_text("<!DOCTYPE html><html></html>")

    check_output("--html", page, "<!doctype html")
    check_output("--html", None, "<!doctype html")


@pytest.mark.parametrize("content", ["cores,cpu_khz\n1,2\n", "", "{}"])
def test_a_file_that_holds_something_else_is_kept(tmp_path, content):
    table = tmp_path / "table.csv"
    table.write_text(content)

    with pytest.raises(BadInput, match="holds something else"):
        check_output("--json", table, "[")


def test_neither_a_folder_nor_a_file_in_no_folder_nor_a_device_is_written(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "x.json"):
        with pytest.raises(BadInput, match="in a folder that exists"):
            check_output("--json", path, "[")
    with pytest.raises(BadInput, match="holds something else"):
        check_output("--json", type(tmp_path)("/dev/null"), "[")

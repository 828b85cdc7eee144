"""The paper's Table 3 at scale smoke, from the command to the report."""

from helpers.sweeps import run

from experiments import table3


def test_table_3_in_small_strokes(tmp_path):
  """All twenty rows, and their report."""
  folder = tmp_path / "table3"
  status, output, errors = run("launch.local", "experiments/table3.py", "--scale=smoke", f"--output={folder}")
  assert (status, errors) == (0, ""), output
  assert output.count(": done") == 20
  status, page, errors = run("experiments.report", folder)
  assert (status, errors) == (0, "")
  for row in table3.PUBLISHED:
    assert f"| {row} | 1 |" in page

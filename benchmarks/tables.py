"""Tables of measurements: on the screen, as Markdown and as CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as ScreenTable


class Table(NamedTuple):
  """What one question's answer looks like: cells are text or numbers, None where there is none."""

  name: str
  title: str
  columns: tuple[str, ...]
  rows: list[tuple]
  notes: list[str]


def text_of(cell: Any) -> str:
  """A cell for people: four digits, or the text."""
  if not isinstance(cell, float):
    return "" if cell is None else str(cell)
  return f"{cell:,.0f}" if cell >= 1e3 else f"{cell:.4g}"


def show_table(console: Console, table: Table) -> None:
  """Prints a table."""
  screen = ScreenTable(*table.columns, title=table.title)
  for row in table.rows:
    screen.add_row(*map(text_of, row))
  console.print(screen)
  for note in table.notes:
    console.print(note)


def write_tables(title: str, tables: Sequence[Table], page: Path) -> None:
  """Writes a Markdown page with all tables and, beside it, one CSV file a table, with every digit."""
  page.parent.mkdir(parents=True, exist_ok=True)
  parts = []
  for table in tables:
    lines = [table.columns, ["---"] * len(table.columns), *([text_of(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    parts.append("\n\n".join([f"## {table.title}", body, *table.notes]))
    with open(page.parent / f"{table.name}.csv", "w", newline="", encoding="utf-8") as file:
      csv.writer(file).writerows([table.columns, *table.rows])
  page.write_text(f"# {title}\n\n" + "\n\n".join(parts) + "\n", encoding="utf-8")

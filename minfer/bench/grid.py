"""Grid: a table before it is known where it will be shown."""

from dataclasses import dataclass

from rich.table import Table


@dataclass
class Grid:
    """A title, the columns' heads, and rows of as many cells; the first column names the rows."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left")
        for number, head in enumerate(self.head):
            table.add_column(
                head, justify="right" if number else "left", min_width=0 if number else 20, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> list[str]:
        """Lines for a document."""
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        return [f"**{self.title}**", "", *(f"| {' | '.join(row)} |" for row in [self.head, rule, *self.rows])]

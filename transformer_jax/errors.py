"""A user's mistake, as opposed to a defect of the program."""


class UserError(Exception):
  """One line that names the field, file or line at fault and what would be right. Commands print it and exit with 2."""

"""What a user's mistake raises: one clear line, which the command line prints before it exits with 2."""


class InputError(ValueError):
    """The input or an option is wrong, or the problem cannot be done exactly here."""

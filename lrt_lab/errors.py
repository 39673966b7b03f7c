"""The one exception that speaks to the user."""


class UserError(ValueError):
    """Something the user gave cannot be used: says what was given, what is allowed, what to do.

    The command line prints it as one line and exits with code 2, without a traceback.
    """

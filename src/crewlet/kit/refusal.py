"""The refusal of something a person wrote: one sentence that says what is wrong, where, and what to do."""


class ConfigRefused(Exception):
    """A file, field or flag of the user's cannot be used as it stands.

    Args:
        problem: what is wrong, without a closing full stop.
        where: the place a person can go to: `company.yaml:12`, `stream.cluster.peers`, or both.
        remedy: what to write or do instead.

    The command line prints `str(error)` and ends with exit code 78.
    """

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.where = where
        self.remedy = remedy
        sentence = f"{where}: {problem}" if where else problem
        super().__init__(f"{sentence}; {remedy}." if remedy else f"{sentence}.")

"""What can go wrong, as exceptions that a person can act on.

::

    LanesError                 exit code 1
    +-- UsageError             exit code 2   a command line or a file is wrong
    |   +-- RecipeError                      a recipe's TOML is wrong
    |   +-- PluginError                      a plugin is broken or breaks the contract
    +-- LaneError              exit code 1   a lane failed: it crashed, hung, or answered wrongly
    |   +-- StagingError                     a file could not be brought to where the lane needs it
    |   +-- StartError                       a process could not be started
    +-- Unrunnable             exit code 3   findings say that the lane cannot run here
    |   +-- Unmeasurable                     it may run, and there is no server to measure
    +-- Claimed                exit code 4   somebody else holds the nodes

Each carries one sentence that says what is wrong and where, and one that says what to do next.
"""

from __future__ import annotations


class LanesError(Exception):
    """Base of all errors that `lanes` reports without a traceback.

    `message` is one sentence without a full stop: what was wrong, and where. `next_step` tells the
    person what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}. {self.next_step}" if self.next_step else self.message


class UsageError(LanesError):
    """A command line, a file or an environment variable is wrong."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe cannot be read: names the file, the key's path, and what would be right."""


class PluginError(UsageError):
    """A plugin is broken, unknown, ambiguous, or breaks the contract."""


class LaneError(LanesError):
    """A lane failed after it was found runnable."""


class StagingError(LaneError):
    """A file could not be brought to where the lane needs it."""


class StartError(LaneError):
    """A process could not be started."""


class Unrunnable(LanesError):
    """Findings say that the lane cannot run here."""

    exit_code = 3


class Unmeasurable(Unrunnable):
    """The lane may run here, but there is nothing to measure."""


class Claimed(LanesError):
    """The nodes are claimed by another."""

    exit_code = 4

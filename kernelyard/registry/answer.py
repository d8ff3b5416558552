"""Yes, or no with a reason; and the error of a bad declaration. Imports nothing of ours, so that `kernelyard list` answers at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


class DeclarationError(ValueError):
    """A declaration or a record holds a bad value; the message has it and the allowed ones."""


def require(condition: bool, message: str) -> None:
    """Raise DeclarationError unless the condition holds."""
    if not condition:
        raise DeclarationError(message)


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether something can be done. A no carries its reason in a sentence.

    `timed` is part of a no to serving: the time is worth having beside those of kernels that may serve. See `timed_only`.
    """

    yes: bool
    reason: str = ""
    timed: bool = False

    def __post_init__(self) -> None:
        require(self.yes or bool(self.reason), "a no without a reason helps nobody: Answer(False, reason)")

    def __bool__(self) -> bool:
        return self.yes


YES = Answer(True)


def no(reason: str) -> Answer:
    """A refusal, in one sentence that names the limit and the value met."""
    return Answer(False, reason)


def timed_only(reason: str) -> Answer:
    """A kernel's refusal of what it computes otherwise than the contract: bench and tune time it, unchecked, and it serves no call.

    The last of its predicates to be asked, so that whatever can't run at all is refused before.
    """
    return Answer(False, f"{reason}: to time against, not to serve", timed=True)


def digest(value: object) -> str:
    """A short content hash of anything JSON can hold; equal values give equal hashes on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

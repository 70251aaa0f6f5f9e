"""The error tree of dlbricks: the library raises these, never prints, never exits.

::

    DlbricksError                     exit code 1: one clear line
    ├── UsageError                    exit code 2: the call itself is wrong
    │   └── AmbiguousQuery            several stored combinations match; names them
    ├── ModelError                    a model cannot be read or bound
    │   ├── ModelNotFound             no file, folder, glob or zoo name matches
    │   ├── BrokenModel               not ONNX, empty, truncated, or invalid
    │   ├── UnsupportedModel          valid ONNX that this version cannot take (opset, IR)
    │   ├── MissingExternalData       a weight file that the model names is not there
    │   ├── UnsafePath                external data that leaves the model's folder
    │   └── UnboundDimension          a dynamic dimension without a value
    ├── InvalidSequence               layers that do not form a runnable network
    ├── SuiteError                    a suite folder cannot be read or written
    │   ├── MissingBrick              the manifest names a file that is not there
    │   └── TamperedBrick             a brick with a name other than its recomputed key
    ├── BackendError                  a runtime cannot fulfil the request
    │   ├── BackendUnavailable        not installed or not usable here; says why
    │   └── UnsupportedBrick          this runtime cannot express this brick
    ├── WorkerError                   the isolated worker ended or misbehaved
    │   ├── WorkerCrashed             it died (signal or exit status)
    │   ├── WorkerTimeout             it did not answer in time
    │   └── WorkerOutOfMemory         it hit its memory limit
    ├── MachineBusy                   another dlbricks process is measuring here
    ├── OutOfTime                     the budget, or the time of one model, ended before anything was measured
    └── StoreError                    the database cannot be used
        ├── DatabaseLocked            another process holds it
        ├── DatabaseReadOnly          it cannot be written
        ├── DatabaseUnreachable       its server does not answer, or the connection broke
        ├── ForeignDatabase           a file or schema that dlbricks did not make
        ├── NewerDatabase             made by a newer dlbricks
        ├── OlderDatabase             needs `dlbricks db upgrade`
        └── DiskFull                  no space left; committed data is kept

Every message names the offender and the remedy. ``remedy`` is appended to the message, so that the one line a user
sees contains both the problem and the next step.
"""

from __future__ import annotations


class DlbricksError(Exception):
    """Root of every error that dlbricks raises on purpose.

    Args:
        message: The problem, with the name of the offender (a path, a layer, a brick key).
        remedy: The next step for the user; appended to the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(message, remedy)

    def __str__(self) -> str:
        text = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return " ".join(text.split())

    def __reduce__(self) -> tuple[object, ...]:
        return (_revive, (type(self), self.message, self.remedy))


def _revive(kind: type[DlbricksError], message: str, remedy: str) -> DlbricksError:
    return kind(message, remedy=remedy)


_MOST_TEXT = 300
"""Characters of an unforeseen exception's text; some quote whole graphs."""


def unforeseen(name: str, error: Exception, done: str = "decomposed") -> str:
    """Return the text for an exception that no code path was written for.

    Args:
        name: The subject of the sentence, for example the model's name.
        error: The exception.
        done: The step that failed, as a participle.
    """
    if isinstance(error, MemoryError):
        return f"{name} could not be {done}: the memory does not suffice"
    if isinstance(error, RecursionError):
        return f"{name} could not be {done}: it is nested too deeply"
    text = " ".join(str(error).split())[:_MOST_TEXT]
    kind = type(error).__name__
    advice = "check the model with onnx.checker, and report this if it is valid"
    return f"{name} could not be {done}: {kind}{f': {text}' if text else ''}; {advice}"


class UsageError(DlbricksError):
    """Raised when the call itself is wrong: an option's value, or options that exclude each other."""

    exit_code = 2


class AmbiguousQuery(UsageError):
    """Raised when several stored combinations match a query; the message lists them."""


class ModelError(DlbricksError):
    """Raised when a model cannot be read or bound."""


class ModelNotFound(ModelError):
    """Raised when no file, folder, glob or zoo name matches."""


class BrokenModel(ModelError):
    """Raised when a file is not ONNX, or is empty, truncated or invalid."""


class UnsupportedModel(ModelError):
    """Raised when a valid model uses an opset or IR version that this version cannot take."""


class MissingExternalData(ModelError):
    """Raised when a weight file that the model names is missing or too short."""


class UnsafePath(ModelError):
    """Raised when external data is outside the model's own folder."""


class UnboundDimension(ModelError):
    """Raised when a dynamic dimension has neither a value nor a sensible default."""


class InvalidSequence(DlbricksError):
    """Raised when layers do not form a runnable network (ModelCreateException of the DLBricks paper)."""


class SuiteError(DlbricksError):
    """Raised when a suite folder cannot be read or written."""


class MissingBrick(SuiteError):
    """Raised when the file of a brick in the manifest is missing."""


class TamperedBrick(SuiteError):
    """Raised when a brick's recomputed key is not its name."""


class BackendError(DlbricksError):
    """Raised when a runtime cannot fulfil a request."""


class BackendUnavailable(BackendError):
    """Raised when a runtime is not installed or not usable on this machine."""


class UnsupportedBrick(BackendError):
    """Raised when a runtime cannot express a brick."""


class WorkerError(DlbricksError):
    """Raised when the isolated worker ended or misbehaved."""


class WorkerCrashed(WorkerError):
    """Raised when the worker died."""


class WorkerTimeout(WorkerError):
    """Raised when the worker did not answer in time."""


class WorkerOutOfMemory(WorkerError):
    """Raised when the worker hit its memory limit."""


class MachineBusy(DlbricksError):
    """Raised when another dlbricks process is measuring on this machine."""


class OutOfTime(DlbricksError):
    """Raised when a budget, or the time of one model, ends before anything was measured."""


class StoreError(DlbricksError):
    """Raised when the database cannot be used."""


class DatabaseLocked(StoreError):
    """Raised when another process holds the database."""


class DatabaseReadOnly(StoreError):
    """Raised when the database cannot be written."""


class DatabaseUnreachable(StoreError):
    """Raised when a database's server does not answer, or the connection to it broke."""


class ForeignDatabase(StoreError):
    """Raised for a file or schema that dlbricks did not make."""


class NewerDatabase(StoreError):
    """Raised for a database made by a newer dlbricks."""


class OlderDatabase(StoreError):
    """Raised for a database that needs ``dlbricks db upgrade``."""


class DiskFull(StoreError):
    """Raised when no space is left on the device."""

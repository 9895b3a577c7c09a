"""Errors a user can cause. Each message is one line: option or file, its value, the rule, what to do."""


class ConfigError(ValueError):
    """A configuration that cannot describe a run; the message names the option."""


class DataError(ValueError):
    """A file whose content cannot be used; the message names the file and, where there is one, the line."""


class CheckpointError(RuntimeError):
    """A file that is not a checkpoint this version can read; the message says why."""


class TrainingDiverged(RuntimeError):
    """A loss or gradient became NaN or infinite where nothing can skip it."""


class RankLost(RuntimeError):
    """Another process of the training ended, or does not answer; the message says what is known."""

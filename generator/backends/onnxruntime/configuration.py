"""Options of a session, by the settings and the network that it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...network.network import Network
from ..base import Settings
from ..custom_ops import paths_of
from .optimised import is_left
from .options import LEVELS

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["SILENT", "graph_options", "has_global_pool", "level", "session_options"]

SILENT = 4
"""Log severity 'fatal': errors come as exceptions, and only once."""


def session_options(network: Network, settings: Settings) -> ort.SessionOptions:
    """Fresh options for a session of a network."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level(network, settings)])
    options.intra_op_num_threads = settings.threads
    options.enable_mem_reuse = settings.memory_reuse
    if settings.device == "cpu":
        _configure_cpu(options, settings)
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if has_global_pool(settings):
        options.use_per_session_threads = False
    for path in paths_of(settings.options):
        options.register_custom_ops_library(path)
    for name, size in network.overrides.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def graph_options(network: Network, settings: Settings) -> ort.SessionOptions:
    """Options of a session that is asked for its graph alone.

    It need not pack weights: for BERT-base that was two thirds of the time that such a session took to be created.
    """
    options = session_options(network, settings)
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _configure_cpu(options: ort.SessionOptions, settings: Settings) -> None:
    import onnxruntime as ort

    chosen = settings.options
    options.inter_op_num_threads = max(int(chosen["inter_op"]), 1)
    if chosen["execution"] == "parallel":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = chosen["arena"] == "on"
    options.enable_mem_pattern = chosen["memory_pattern"] == "on"
    spinning = "1" if chosen["spinning"] == "on" else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    if chosen["denormal_as_zero"] == "on":
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    if chosen["prepacking"] == "off":
        options.add_session_config_entry("session.disable_prepacking", "1")
    cores = _pool_cores(settings)
    if cores and not has_global_pool(settings):
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(map(str, cores)))


def has_global_pool(settings: Settings) -> bool:
    """Whether all sessions share one pool of threads: pools of their own would spin against each other.

    The threads of the shared pool always spin; those that are not to spin do not mind each other. They are not bound
    one by one; the process is bound to as many cores as it has threads.
    """
    return settings.together and settings.threads > 1 and settings.options.get("spinning", "on") == "on"


def level(network: Network, settings: Settings) -> str:
    """The level of graph optimisation: none for what has been optimised."""
    return "disabled" if network.as_is and not is_left(network) else settings.options["optimization"]


def _pool_cores(settings: Settings) -> list[int]:
    """Logical processors, counted from 1, of the pool's threads: all but the calling one; empty: not bound."""
    if settings.options["pinning"] == "off" or settings.options["execution"] == "parallel":
        return []
    return [core + 1 for core in settings.cores[1 : settings.threads]]

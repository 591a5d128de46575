"""pytest's hooks: they parametrise the tests of the suite, and report what `specreg.suite` does.

pytest is imported nowhere else in the library. Each hook is listed here under its module.
"""

from specreg.plugin.collection import (
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_report_collectionfinish,
)
from specreg.plugin.options import pytest_addoption, pytest_cmdline_main
from specreg.plugin.pytest_benchmark import (
    pytest_benchmark_generate_machine_info,
    pytest_benchmark_group_stats,
    pytest_benchmark_update_json,
    pytest_pycollect_makeitem,
)
from specreg.plugin.reporting import (
    pytest_internalerror,
    pytest_report_teststatus,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from specreg.plugin.session import (
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_setup,
    pytest_runtestloop,
    pytest_sessionfinish,
    pytest_unconfigure,
)
from specreg.plugin.xdist import (
    pytest_configure_node,
    pytest_testnodedown,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_addoption",
    "pytest_benchmark_generate_machine_info",
    "pytest_benchmark_group_stats",
    "pytest_benchmark_update_json",
    "pytest_cmdline_main",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_generate_tests",
    "pytest_internalerror",
    "pytest_pycollect_makeitem",
    "pytest_report_collectionfinish",
    "pytest_report_teststatus",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtestloop",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_unconfigure",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

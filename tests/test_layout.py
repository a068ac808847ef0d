"""Tests mirror the source: the tests of `log/segment.py` are `tests/log/test_segment.py` and `test_segment_*.py`.

A module without functions needs no test. Modules that are tested elsewhere are listed with the test that covers them.
Modules that say they are pure are under the contract of import-linter that checks it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "penstock"

TESTED_ELSEWHERE = {
    # One story exercises several small modules.
    "activity/cluster.py": "activity/live/test_others_cluster.py",
    "activity/events.py": "activity/site/test_site.py",
    "activity/live/watch.py": "activity/live/test_others_cluster.py",
    "activity/pipelines/arrays.py": "activity/pipelines/test_relevance.py",
    "activity/pipelines/engine/backfill.py": "activity/pipelines/engine/test_runner.py",
    "activity/pipelines/engine/status.py": "activity/pipelines/engine/test_runner.py",
    "activity/report/charts.py": "activity/report/test_render.py",
    "activity/report/document.py": "activity/report/test_render.py",
    "activity/report/measurements.py": "activity/report/test_writer.py",
    "activity/report/sections.py": "activity/report/test_render.py",
    "activity/site/population.py": "activity/site/test_site.py",
    "activity/site/randomness.py": "activity/site/test_site.py",
    "activity/site/vocabulary.py": "activity/site/test_site.py",
    "broker/api_table.py": "broker/test_request_parts.py",
    "broker/background_tasks.py": "broker/test_broker_standalone.py",
    "broker/down_conversion.py": "hostile/test_memory_bounds.py",
    "broker/router.py": "broker/test_broker_standalone.py",
    "broker/settings/catalogue.py": "broker/settings/test_broker_settings.py",
    "broker/settings/description.py": "broker/settings/test_broker_settings.py",
    "cli/activity/run.py": "activity/live/test_others_cluster.py",
    "cli/cluster/brokers_report.py": "cli/cluster/test_brokers.py",
    "cli/server/zookeeper.py": "cluster/tree/zookeeper/test_server.py",
    "cli/spark/load.py": "spark/tables/test_commands.py",
    "cli/spark/spark.py": "spark/test_spark_command.py",
    "cli/spark/table.py": "spark/tables/test_commands.py",
    "cli/spark/warehouse.py": "spark/tables/test_commands.py",
    "client/admin/cluster.py": "client/contract/test_administering.py",
    "client/admin/configs.py": "client/contract/test_administering.py",
    "client/admin/core.py": "client/admin/test_admin.py",
    "client/admin/groups.py": "client/contract/test_administering.py",
    "client/admin/results.py": "client/contract/test_administering.py",
    "client/consumer/core.py": "client/consumer/test_consumer.py",
    "client/consumer/fetcher.py": "client/consumer/test_consumer.py",
    "client/consumer/message_streams.py": "client/consumer/test_simple_consumer.py",
    "client/consumer/settings.py": "client/consumer/test_consumer.py",
    "client/leader_requests.py": "client/consumer/test_consumer_faults.py",
    "client/metadata_updater.py": "client/test_cluster_client.py",
    "client/offset_stores/base.py": "client/consumer/test_coordinator_commits.py",
    "client/producer/bulk.py": "client/contract/test_producing.py",
    "client/producer/core.py": "client/producer/test_sender_outcomes.py",
    "client/producer/interceptors.py": "client/producer/test_producer.py",
    "client/settings.py": "client/producer/test_producer.py",
    "cluster/broker_links.py": "cluster/membership/test_failure_detection_probes.py",
    "cluster/controller/configs.py": "cluster/controller/test_controller.py",
    "cluster/controller/store.py": "cluster/controller/test_transaction.py",
    "config_def.py": "broker/settings/test_config_def.py",
    "coordination/groups/group.py": "coordination/groups/test_rebalance.py",
    "coordination/responses.py": "coordination/test_group_coordinator.py",
    "log/compaction/record_filter.py": "log/compaction/test_job.py",
    "log/inspection/dump.py": "cli/log/test_dump.py",
    "log/inspection/log_files.py": "cli/log/test_verify_survey.py",
    "log/inspection/segment_check.py": "cli/log/test_verify_damage.py",
    "log/inspection/verification.py": "cli/log/test_verify.py",
    "log/settings.py": "log/test_retention.py",
    "runtime/clock.py": "runtime/test_socket_limits_idle.py",
    "runtime/environment.py": "testing/simulation/test_run.py",
    "runtime/java.py": "spark/test_session_java.py",
    "spark/formats/avro.py": "spark/formats/test_decoder.py",
    "spark/formats/protobuf.py": "spark/formats/test_decoder.py",
    "spark/formats/spec.py": "spark/formats/test_decoder.py",
    "spark/run.py": "spark/test_spark_command.py",
    "spark/shell_startup.py": "spark/test_spark_command.py",
    "spark/tables/warehouse.py": "spark/tables/test_loader_dead_letters.py",
    "spark/worker_daemon.py": "spark/test_session_output.py",
    "testing/crash_points.py": "testing/test_simulated_disk_power_loss.py",
    "testing/simulated_files.py": "runtime/test_files_contract.py",
    "testing/simulation/workload.py": "testing/simulation/test_run.py",
    "testing/zookeeper.py": "cluster/tree/zookeeper/test_server.py",
    "wire/layout.py": "wire/test_codec_rules.py",
    "wire/primitives.py": "wire/test_codec_round_trip.py",
    "wire/types.py": "wire/test_codec_rules.py",
}
FOLDERS_TESTED_ELSEWHERE = {
    "broker/handlers/": "broker/handlers/test_admin_handlers.py",  # and by the contracts of clients
    "records/python_kernel_": "records/test_kernel_equivalence.py",
}


def has_logic(module: Path) -> bool:
    """Whether it defines a function outside of its exceptions, which are tested where they are raised."""
    if module.name in ("__init__.py", "__main__.py", "errors.py"):
        return False
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(module.read_text()))
    )


def is_tested_by_name(module: str) -> bool:
    path = Path(module)
    folder = TESTS / path.parent
    return (folder / f"test_{path.name}").exists() or any(folder.glob(f"test_{path.stem}_*.py"))


def test_the_tests_of_a_module_are_found_by_its_name() -> None:
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if has_logic(path)}
    untested = sorted(
        module
        for module in modules
        if not is_tested_by_name(module)
        and module not in TESTED_ELSEWHERE
        and not module.startswith(tuple(FOLDERS_TESTED_ELSEWHERE))
    )
    assert untested == [], "add a test named after the module, or an entry in TESTED_ELSEWHERE"


def test_the_exceptions_exist_and_are_needed() -> None:
    tests = {*TESTED_ELSEWHERE.values(), *FOLDERS_TESTED_ELSEWHERE.values()}
    assert sorted(test for test in tests if not (TESTS / test).exists()) == []
    stale = [each for each in TESTED_ELSEWHERE if not (SOURCE / each).exists() or is_tested_by_name(each)]
    assert stale == []


def test_modules_that_say_they_are_pure_are_under_the_contract() -> None:
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    [contract] = [each for each in settings["tool"]["importlinter"]["contracts"] if each["name"].startswith("Pure")]
    checked = tuple(contract["source_modules"])
    unchecked = []
    for path in SOURCE.rglob("*.py"):
        first, _, _ = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
        name = ".".join(("penstock", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        if re.search(r"\bPure\b|\bno I/O|\bNo I/O|without I/O", first) and not f"{name}.".startswith(
            tuple(f"{module}." for module in checked)
        ):
            unchecked.append(name)
    assert unchecked == []

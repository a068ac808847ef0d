"""Tests mirror the source: the tests of `log/segment.py` are `tests/log/test_segment.py` and `test_segment_*.py`.

A module without functions needs no test. Modules that are tested elsewhere are listed with the test that covers them.
A folder has at most twenty modules, a module at most 900 lines, and a tiny module a reason. Modules that say they are
pure are under a contract of import-linter.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "penstock"

MODULES_MAX = 20
TESTED_ELSEWHERE = {
    # One story exercises several small modules.
    "activity/cluster.py": "activity/live/test_others_cluster.py",
    "activity/events.py": "activity/site/test_site.py",
    "activity/live/watch.py": "activity/live/test_others_cluster.py",
    "activity/pipelines/arrays.py": "activity/pipelines/test_relevance.py",
    "activity/pipelines/engine/backfill.py": "activity/pipelines/engine/test_runner.py",
    "activity/pipelines/engine/queries.py": "activity/pipelines/engine/test_runner.py",
    "activity/pipelines/engine/status.py": "activity/pipelines/engine/test_runner.py",
    "activity/report/charts.py": "activity/report/test_render.py",
    "activity/report/document.py": "activity/report/test_render.py",
    "activity/report/measurements.py": "activity/report/test_writer.py",
    "activity/report/sections.py": "activity/report/test_render.py",
    "activity/site/population.py": "activity/site/test_site.py",
    "activity/site/randomness.py": "activity/site/test_site.py",
    "activity/site/vocabulary.py": "activity/site/test_site.py",
    "broker/api_table.py": "broker/test_request_parts.py",
    "broker/broker_only.py": "hostile/test_impostors.py",
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
    "client/admin/acls.py": "cli/security/test_acls.py",
    "client/admin/cluster.py": "client/contract/test_administering.py",
    "client/admin/configs.py": "client/contract/test_administering.py",
    "client/admin/core.py": "client/admin/test_admin.py",
    "client/admin/groups.py": "client/contract/test_administering.py",
    "client/admin/users.py": "cli/security/test_users.py",
    "client/admin/results.py": "client/contract/test_administering.py",
    "client/diagnosis.py": "cli/cluster/test_doctor.py",
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
    "cluster/broker_links.py": "cluster/membership/test_failure_detection_probes.py",
    "cluster/controller/entity_configs.py": "broker/handlers/test_scram_credentials.py",
    "cluster/controller/configs.py": "cluster/controller/test_controller.py",
    "cluster/controller/store.py": "cluster/controller/test_transaction.py",
    "config_def.py": "broker/settings/test_config_def.py",
    "console/accounts.py": "console/test_security.py",
    "console/pages/acls.py": "console/test_app.py",
    "console/pages/brokers.py": "console/test_app.py",
    "console/pages/groups.py": "console/test_app.py",
    "console/pages/layout.py": "console/test_app.py",
    "console/pages/login.py": "console/test_security.py",
    "console/pages/overview.py": "console/test_app.py",
    "console/pages/records.py": "console/records/test_reading.py",
    "console/pages/topics.py": "console/test_app.py",
    "console/pages/transactions.py": "console/test_app.py",
    "console/pages/users.py": "console/test_app.py",
    "console/records/tail.py": "console/records/test_reading.py",
    "console/static_files.py": "console/test_app.py",
    "coordination/coordinator_record.py": "coordination/test_group_records.py",
    "coordination/groups/group.py": "coordination/groups/test_rebalance.py",
    "plugin.py": "broker/settings/test_retention_class.py",
    "properties_file.py": "broker/settings/test_server_properties.py",
    "coordination/responses.py": "coordination/test_group_coordinator.py",
    "log/compaction/record_filter.py": "log/compaction/test_job.py",
    "log/inspection/dump.py": "cli/log/test_dump.py",
    "log/inspection/log_files.py": "cli/log/test_verify_survey.py",
    "log/inspection/segment_check.py": "cli/log/test_verify_damage.py",
    "log/inspection/verification.py": "cli/log/test_verify.py",
    "log/settings.py": "log/test_retention.py",
    "mirror/status.py": "cli/mirror/test_mirror.py",
    "registry/bodies.py": "registry/test_rest.py",
    "registry/formats/proto_encoder.py": "registry/formats/test_proto_descriptor.py",
    "registry/formats/proto_known_types.py": "registry/formats/test_protobuf.py",
    "registry/parser.py": "registry/test_jobs.py",
    "registry/records.py": "registry/test_store.py",
    "registry/registry.py": "registry/test_leadership.py",
    "registry/service.py": "registry/test_rest.py",
    "runtime/clock.py": "runtime/test_socket_limits_idle.py",
    "runtime/environment.py": "testing/simulation/test_run.py",
    "runtime/quantities.py": "cli/test_values.py",
    "runtime/java.py": "spark/test_session_java.py",
    "spark/fork_client.py": "spark/test_fork_server.py",
    "spark/formats/avro.py": "spark/formats/test_decoder.py",
    "spark/formats/protobuf.py": "spark/formats/test_decoder.py",
    "spark/formats/spec.py": "spark/formats/test_decoder.py",
    "spark/run.py": "spark/test_spark_command.py",
    "spark/shell_startup.py": "spark/test_spark_command.py",
    "spark/worker_daemon.py": "spark/test_session_output.py",
    "testing/simulation/transactions/faults.py": "testing/simulation/transactions/test_workload.py",
    "testing/simulation/transactions/mutations.py": "testing/simulation/test_mutations.py",
    "testing/crash_points.py": "testing/test_simulated_disk_power_loss.py",
    "testing/simulated_files.py": "runtime/test_files_contract.py",
    "testing/simulation/workload.py": "testing/simulation/test_run.py",
    "testing/zookeeper.py": "cluster/tree/zookeeper/test_server.py",
    "wire/layout.py": "wire/test_codec_rules.py",
    "wire/primitives.py": "wire/test_codec_round_trip.py",
    "wire/types.py": "wire/test_codec_rules.py",
}
LINES_MAX = 900
LINES_MIN = 60
TINY = {
    # A module per API: its schema.
    "wire/schemas/": "one per API",
    "broker/handlers/": "one per API",
    # Several packages share it, and none of them owns it.
    "activity/cluster.py": "the pipelines, the watch and the report connect by it",
    "client/offset_stores/base.py": "what a store of offsets has to do, for stores of your own",
    "cluster/broker_links.py": "the links between brokers, as cluster, replication and coordination see them",
    "cluster/topic_names.py": "handlers, settings and controller check names by it",
    "coordination/coordinator_record.py": "group_records and transactions encode records by it",
    "plugin.py": "clients, broker and commands load classes by it",
    "records/kernel.py": "chooses the compiled kernel or its twin",
    "records/types.py": "what the kernel and its twin share",
    "registry/parser.py": "a thread and processes; the jobs are for themselves",
    "registry/settings.py": "all of the registry reads them",
    "runtime/backoff.py": "clients and brokers wait by it",
    "runtime/clock.py": "replaced in simulation",
    "runtime/quantities.py": "commands and the console show the same words",
    "security/principal.py": "all of security, and the wire, name principals by it",
    # Imported without the rest, because that is slow, optional or starts something.
    "cli/activity/child.py": "a process of its own",
    "console/static_files.py": "two files, and nothing else",
    "cli/log_format.py": "loaded before the commands",
    "mirror/offset_map.py": "pure, unlike what uses it",
    "spark/run.py": "a program that spark-submit starts",
    "spark/shell_startup.py": "read by the shell",
    "spark/worker_daemon.py": "started by Spark",
    "testing/embedded_broker.py": "the public name of the broker for tests",
}
PURITY = re.compile(r"\b[Pp]ure\b(?! function)|\b[Nn]o\s+(?:I/O|clock)\b|\bwithout\s+(?:I/O|a\s+clock)\b")
PURE_IN_PART = {
    # Claims about a function, a class or another module.
    "penstock.activity.pipelines.definition": ["`Derived.compute` has no clock"],
    "penstock.cluster.controller.acls": ["`alter_acls` decides without I/O"],
    "penstock.coordination.coordinator_runtime": ["The shard, a machine without I/O"],
    "penstock.coordination.transactions": ["states and records (pure), a shard of them (pure)"],
    "penstock.replication.follower": ["no clock but the loop's"],
    "penstock.spark.tables.load_plan": ["is pure except the functions"],
}
FOLDERS_TESTED_ELSEWHERE = {
    "broker/authorization_rules/": "broker/test_authorization_rules.py",
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


def test_a_folder_has_at_most_twenty_modules() -> None:
    one_per_api = {SOURCE / "wire" / "schemas", SOURCE / "broker" / "handlers"}
    counted = {folder: len(list(folder.glob("*.py"))) - 1 for folder in SOURCE.rglob("*") if folder.is_dir()}
    crowded = {str(folder.relative_to(SOURCE)): count for folder, count in counted.items() if count > MODULES_MAX}
    assert {name for name in crowded if SOURCE / name not in one_per_api} == set(), (
        "make a sub-package of one of its ideas"
    )


def _lines(module: Path) -> int:
    return len(module.read_text().splitlines())


def test_no_module_has_more_than_nine_hundred_lines() -> None:
    large = {path.relative_to(SOURCE).as_posix(): _lines(path) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in large.items() if lines > LINES_MAX} == {}, "split it along its ideas"


def test_a_tiny_module_has_a_reason() -> None:
    tiny = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py", "errors.py") and _lines(path) < LINES_MIN
    }
    assert sorted(each for each in tiny if not each.startswith(tuple(TINY))) == [], (
        "move it into the module that uses it, or say in TINY why it stands alone"
    )
    assert [each for each in TINY if not any(name.startswith(each) for name in tiny)] == [], "no longer tiny"


def test_modules_that_say_they_are_pure_are_under_the_contract() -> None:
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    [contract] = [each for each in settings["tool"]["importlinter"]["contracts"] if each["name"].startswith("Pure")]
    checked = tuple(contract["source_modules"])
    unchecked = []
    for path in SOURCE.rglob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        name = ".".join(("penstock", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for part in PURE_IN_PART.get(name, ()):
            assert part in docstring, f"{name} no longer says {part!r}"
            docstring = docstring.replace(part, "")
        if PURITY.search(docstring) and not f"{name}.".startswith(tuple(f"{module}." for module in checked)):
            unchecked.append(name)
    assert unchecked == [], "add the module to the contract, or what it says of a part of it to PURE_IN_PART"

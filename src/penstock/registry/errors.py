"""The errors of the registry, with the codes of Confluent's REST API. `rest.py` turns them into responses."""

from __future__ import annotations


class RegistryError(Exception):
    """A request that fails. The first three digits of `code` are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


class RegistryUnavailable(Exception):
    """The registry cannot start: its topic is unusable, or its address is taken. The message says what to do."""


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(what: object = None) -> RegistryError:
    return RegistryError(40403, "Schema not found" if what is None else f"Schema {what} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40406, f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently"
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_subject_config(subject: str) -> RegistryError:
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> RegistryError:
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def invalid_schema(reason: object) -> RegistryError:
    return RegistryError(42201, f"Invalid schema: {reason}")


def invalid_version(text: object) -> RegistryError:
    return RegistryError(
        42202,
        f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def invalid_compatibility(value: object, levels: tuple[str, ...]) -> RegistryError:
    return RegistryError(42203, f"Invalid compatibility level '{value}'. Valid values are {', '.join(levels).lower()}.")


def invalid_mode(value: object, modes: tuple[str, ...]) -> RegistryError:
    return RegistryError(42204, f"Invalid mode '{value}'. Valid values are {', '.join(modes)}.")


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(42205, reason)


def reference_exists(subject: str, version: int) -> RegistryError:
    return RegistryError(
        42206, f"One or more references exist to the schema {{subject={subject},version={version}}}. Delete them first."
    )


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not valid.")


def context_not_empty(context: str) -> RegistryError:
    return RegistryError(42211, f"The specified context '{context}' is not empty.")


def store_failed(reason: object) -> RegistryError:
    return RegistryError(50001, f"Error in the backend data store: {reason}")


def timed_out(reason: object) -> RegistryError:
    return RegistryError(50002, f"Operation timed out: {reason}")


def forwarding_failed(reason: object) -> RegistryError:
    return RegistryError(50003, f"Error while forwarding the request to the leader: {reason}")


def no_leader(reason: object) -> RegistryError:
    return RegistryError(50004, f"The leader is not known: {reason}")

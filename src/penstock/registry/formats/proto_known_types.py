"""Types that .proto files may import without a reference: those of protoc and of Confluent's registry. Pure.

Only their names and kinds are kept, since both sides of a comparison mean the same file by the same path.
"""

from __future__ import annotations

_GOOGLE = "google.protobuf"
_TYPE = "google.type"

# Path: package, messages, enums, and the files that it imports publicly or that its own types need are of no concern.
_FILES: dict[str, tuple[str, str, str]] = {
    "google/protobuf/any.proto": (_GOOGLE, "Any", ""),
    "google/protobuf/api.proto": (_GOOGLE, "Api Method Mixin", ""),
    "google/protobuf/descriptor.proto": (
        _GOOGLE,
        "FileDescriptorSet FileDescriptorProto DescriptorProto DescriptorProto.ExtensionRange "
        "DescriptorProto.ReservedRange ExtensionRangeOptions ExtensionRangeOptions.Declaration FieldDescriptorProto "
        "OneofDescriptorProto EnumDescriptorProto EnumDescriptorProto.EnumReservedRange EnumValueDescriptorProto "
        "ServiceDescriptorProto MethodDescriptorProto FileOptions MessageOptions FieldOptions "
        "FieldOptions.EditionDefault FieldOptions.FeatureSupport OneofOptions EnumOptions EnumValueOptions "
        "ServiceOptions MethodOptions UninterpretedOption UninterpretedOption.NamePart FeatureSet FeatureSetDefaults "
        "FeatureSetDefaults.FeatureSetEditionDefault SourceCodeInfo SourceCodeInfo.Location GeneratedCodeInfo "
        "GeneratedCodeInfo.Annotation",
        "Edition SymbolVisibility "
        "ExtensionRangeOptions.VerificationState FieldDescriptorProto.Type FieldDescriptorProto.Label "
        "FileOptions.OptimizeMode FieldOptions.CType FieldOptions.JSType FieldOptions.OptionRetention "
        "FieldOptions.OptionTargetType MethodOptions.IdempotencyLevel FeatureSet.FieldPresence FeatureSet.EnumType "
        "FeatureSet.RepeatedFieldEncoding FeatureSet.Utf8Validation FeatureSet.MessageEncoding FeatureSet.JsonFormat "
        "GeneratedCodeInfo.Annotation.Semantic",
    ),
    "google/protobuf/duration.proto": (_GOOGLE, "Duration", ""),
    "google/protobuf/empty.proto": (_GOOGLE, "Empty", ""),
    "google/protobuf/field_mask.proto": (_GOOGLE, "FieldMask", ""),
    "google/protobuf/source_context.proto": (_GOOGLE, "SourceContext", ""),
    "google/protobuf/struct.proto": (_GOOGLE, "Struct Value ListValue", "NullValue"),
    "google/protobuf/timestamp.proto": (_GOOGLE, "Timestamp", ""),
    "google/protobuf/type.proto": (
        _GOOGLE,
        "Type Field Enum EnumValue Option",
        "Field.Kind Field.Cardinality Syntax",
    ),
    "google/protobuf/wrappers.proto": (
        _GOOGLE,
        "DoubleValue FloatValue Int64Value UInt64Value Int32Value UInt32Value BoolValue StringValue BytesValue",
        "",
    ),
    "google/type/calendar_period.proto": (_TYPE, "", "CalendarPeriod"),
    "google/type/color.proto": (_TYPE, "Color", ""),
    "google/type/date.proto": (_TYPE, "Date", ""),
    "google/type/datetime.proto": (_TYPE, "DateTime TimeZone", ""),
    "google/type/dayofweek.proto": (_TYPE, "", "DayOfWeek"),
    "google/type/decimal.proto": (_TYPE, "Decimal", ""),
    "google/type/expr.proto": (_TYPE, "Expr", ""),
    "google/type/fraction.proto": (_TYPE, "Fraction", ""),
    "google/type/interval.proto": (_TYPE, "Interval", ""),
    "google/type/latlng.proto": (_TYPE, "LatLng", ""),
    "google/type/localized_text.proto": (_TYPE, "LocalizedText", ""),
    "google/type/money.proto": (_TYPE, "Money", ""),
    "google/type/month.proto": (_TYPE, "", "Month"),
    "google/type/phone_number.proto": (_TYPE, "PhoneNumber PhoneNumber.ShortCode", ""),
    "google/type/postal_address.proto": (_TYPE, "PostalAddress", ""),
    "google/type/quaternion.proto": (_TYPE, "Quaternion", ""),
    "google/type/timeofday.proto": (_TYPE, "TimeOfDay", ""),
    "confluent/meta.proto": ("confluent", "Meta", ""),
    "confluent/type/decimal.proto": ("confluent.type", "Decimal", ""),
    "confluent/type/variant.proto": ("confluent.type", "Variant", ""),
}


def _names(package: str, names: str) -> list[str]:
    return [f"{package}.{name}" for name in names.split()]


# Path: kind by full name.
KNOWN_FILES: dict[str, dict[str, str]] = {
    path: {
        **dict.fromkeys(_names(package, messages), "message"),
        **dict.fromkeys(_names(package, enums), "enum"),
    }
    for path, (package, messages, enums) in _FILES.items()
}

// Tests rejected schemas and the place in the error. grammar_test.cc tests accepted ones.
#include "serve/grammar/schema.h"

#include <gtest/gtest.h>

#include "serve/grammar/schema_pattern.h"
#include "support/must.h"

namespace moracle::serve::schema_test {
namespace {

using testing::must;

Result<std::string> lower(const std::string& schema, const SchemaLimits& limits = {}) {
  return lower_schema(nlohmann::ordered_json::parse(schema), true, limits, "schema");
}

void expect_refused(const char* schema, const char* place, const char* text) {
  const auto lowered = lower(schema);
  ASSERT_FALSE(lowered.ok()) << schema << *lowered;
  EXPECT_EQ(lowered.error().kind, ErrorKind::kInvalidArgument) << schema;
  EXPECT_EQ(lowered.error().place, place) << schema;
  EXPECT_NE(lowered.error().to_string().find(text), std::string::npos)
      << schema << lowered.error().to_string();
}

TEST(Schema, RejectsIgnoredKeywordsByName) {
  const std::pair<const char*, const char*> all[] = {
      {R"({"not": {"type": "string"}})", "schema.not"},
      {R"({"type": "string", "not": {"const": "a"}})", "schema.not"},
      {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
      {R"({"type": "array", "contains": {"const": 1}})", "schema.contains"},
      {R"({"type": "array", "unevaluatedItems": false})", "schema.unevaluatedItems"},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", "schema.dependentRequired"},
      {R"({"type": "object", "minProperties": 1})", "schema.minProperties"},
      {R"({"type": "object", "unevaluatedProperties": false})", "schema.unevaluatedProperties"},
      {R"({"if": {"type": "string"}, "then": {"const": "b"}})", "schema.if"},
      {R"({"type": "number", "multipleOf": 2})", "schema.multipleOf"},
      {R"({"type": "string", "minimum": 3})", "schema.minimum"},
      {R"({"minimum": 3})", "schema.minimum"},
      {R"({"required": ["a"]})", "schema.required"},
      {R"({"type": "object", "properties": {"a": {"type": "null", "foo": 1}}})",
       "schema.properties.a.foo"},
      {R"({"anyOf": [{"type": "null"}, {"type": "string", "contentEncoding": "base64"}]})",
       "schema.anyOf[1].contentEncoding"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$id": "b"}}}})",
       "schema.$defs.a.items.$id"},
      {R"({"$ref": "#/$defs/a", "minimum": 2, "$defs": {"a": {"type": "null"}}})",
       "schema.minimum"},
      {R"({"anyOf": [{"type": "null"}], "type": "null"})", "schema.type"},
      {R"({"enum": [1, 2], "minimum": 2})", "schema.minimum"},
  };
  for (const auto& [schema, place] : all) expect_refused(schema, place, "engine");
}

TEST(Schema, RejectsValuesThatEngineMisinterprets) {
  const std::tuple<const char*, const char*, const char*> all[] = {
      {R"({"allOf": [{"type": "null"}, {"type": "string"}]})", "schema.allOf", "one schema"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "schema.oneOf", "exclude"},
      {R"({"oneOf": [{"const": 1}, {"type": "integer"}]})", "schema.oneOf", "exclude"},
      {R"({"type": "object", "properties": {"a": {}}, "required": ["z"]})", "schema.required",
       "properties lists"},
      {R"({"type": "string", "enum": ["a", 1]})", "schema.enum", "it is 1"},
      {R"({"type": "string", "format": "regex"})", "schema.format", "regex"},
      {R"({"type": "string", "pattern": "a", "maxLength": 2})", "schema", "only one"},
      {R"({"type": "integer", "multipleOf": 2.5})", "schema.multipleOf", "whole"},
      {R"({"type": "integer", "multipleOf": 2, "minimum": 0})", "schema.multipleOf", "both"},
      {R"({"type": "number", "minimum": 1e-9})", "schema.minimum", "6 digits"},
      {R"({"$ref": "http://example.org/schema"})", "schema.$ref", "in this schema"},
      {R"({"$ref": "#name"})", "schema.$ref", "in this schema"},
      {R"({"$ref": "#/$defs/none"})", "schema.$ref", "in this schema"},
      {R"({"type": "object", "propertyNames": {"pattern": "a"}, "properties": {"a": {}}})",
       "schema.propertyNames", "without properties"},
      {R"({"type": "object", "patternProperties": {"a": {}}, "additionalProperties": true})",
       "schema.additionalProperties", "false"},
      {R"({"type": "text"})", "schema.type", "string, integer"},
      {R"({"type": []})", "schema.type", "string, integer"},
      {R"({"items": [{"type": "null"}]})", "schema.items", "an object or true"},
      {R"({"type": "string", "minLength": -1})", "schema.minLength", "whole"},
      {R"({"type": "array", "maxItems": 1e12})", "schema.maxItems", "1000000"},
  };
  for (const auto& [schema, place, text] : all) expect_refused(schema, place, text);
}

TEST(Schema, RejectsUnsatisfiableSchemas) {
  const std::pair<const char*, const char*> all[] = {
      {R"({"$ref": "#"})", "schema"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]},
           "b": {"$ref": "#/$defs/a"}}})",
       "schema"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "schema"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "schema"},
      {R"({"type": "object", "properties": {"a": false}})", "schema.properties.a"},
      {"false", "schema"},
      {R"({"enum": []})", "schema.enum"},
      {R"({"anyOf": []})", "schema.anyOf"},
      {R"({"type": "integer", "minimum": 2.1, "maximum": 2.9})", "schema"},
      {R"({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1})", "schema"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6})", "schema.multipleOf"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "schema"},
      {R"({"type": "string", "pattern": "^\"$"})", "schema.pattern"},
      {R"({"type": "array", "items": false, "minItems": 1})", "schema"},
  };
  for (const auto& [schema, place] : all) expect_refused(schema, place, "needs");
}

TEST(Schema, NamesExceededLimit) {
  const SchemaLimits limits{.schemas = 3,
                            .optional_members = 1,
                            .values = 2,
                            .value_bytes = 24,
                            .bytes = 20,
                            .positions = 16};
  const std::pair<const char*, const char*> all[] = {
      {R"({"anyOf": [{}, {}, {}]})", "at most 3 schemas"},
      {R"({"properties": {"a": {}, "b": {}}})", "at most 1 optional members"},
      {R"({"enum": [1, 2, 3]})", "at most 2 values"},
      {R"({"const": "twenty bytes and more"})", "at most 20 bytes"},
      {R"({"const": "twenty-four bytes and more"})", "at most 24 bytes"},
      {R"({"type": "string", "maxLength": 17})", "at most 16 positions"},
      {R"({"type": "string", "pattern": "^(?:[a-z]{0,4}){0,4}$"})", "at most 16 positions"},
      {R"({"type": "string", "pattern": "a?b?c?d?e?f?"})", "at most 16 positions"},
  };
  for (const auto& [schema, text] : all) {
    const auto lowered = lower(schema, limits);
    ASSERT_FALSE(lowered.ok()) << schema;
    EXPECT_NE(lowered.error().to_string().find(text), std::string::npos)
        << lowered.error().to_string();
  }
  // Nested references must not multiply the work.
  std::string tower = R"({"oneOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d0"}], "$defs": {)";
  for (int i = 0; i < 60; ++i) {
    const std::string next = "{\"$ref\": \"#/$defs/d" + std::to_string(i + 1) + "\"}";
    tower += "\"d" + std::to_string(i) + "\": {\"anyOf\": [" + next + ", " + next + "]}, ";
  }
  EXPECT_FALSE(lower(tower + R"("d60": {"type": "null"}}})").ok());
}

TEST(Schema, LargeVocabulariesAllowFewerPositions) {
  EXPECT_EQ(SchemaLimits::of_vocabulary(4096).positions, 2048);
  EXPECT_EQ(SchemaLimits::of_vocabulary(32768).positions, 256);
  EXPECT_EQ(SchemaLimits::of_vocabulary(1 << 30).positions, 128);
}

TEST(SchemaPatterns, RejectsConstructsThatEngineMisinterprets) {
  for (const char* pattern :
       {"^(?=x)b$", "(?!x)b",  "(?<=x)b", "(?<!x)b", "(?i)b",   "a^b",    "a$b",
        "(a$)b",    "(^a)?",   "\\bb",    "(a)\\1",  "\\p{L}",  "\\k<x>", "(a",
        "a)",       "[a",      "a**",     "a{3,2}",  "a{200}",  "*a",     "{2}",
        "[b-a]",    "[a-\\d]", "\\",      "\\u{41}", "\\ud800", "[]",     "a]"}) {
    EXPECT_FALSE(lower_pattern(pattern).ok()) << pattern;
  }
}

TEST(SchemaPatterns, RejectsLongPatternImmediately) {
  EXPECT_TRUE(lower_pattern(std::string(4096, 'a')).ok());
  const auto lowered = lower_pattern(std::string(8 << 20, 'a'));
  ASSERT_FALSE(lowered.ok());
  EXPECT_EQ(lowered.error().need, "at most 4096 bytes");
}

TEST(SchemaPatterns, ExcludesCharactersThatJsonMustEscape) {
  EXPECT_EQ(must(lower_pattern("a|\"|\\\\|\\n")).text, "[\\u{61}]");
  EXPECT_EQ(must(lower_pattern("^a\"*$")).text, "[\\u{61}]");
  EXPECT_EQ(must(lower_pattern("[\\x1f-\\x21]")).text, "[\\u{20}-\\u{21}]");
  EXPECT_FALSE(lower_pattern("\\t+").ok());
}

TEST(Schema, SeveralSchemasShareLimits) {
  SchemaLimits left;
  left.schemas = 5;
  const auto schema = nlohmann::ordered_json::parse(
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 64}}})");
  const int64_t positions = left.positions;
  EXPECT_TRUE(lower_schema_within(schema, true, left, "one").ok());
  EXPECT_EQ(left.schemas, 3);
  EXPECT_EQ(left.positions, positions - 64 - 64);
  EXPECT_TRUE(lower_schema_within(schema, true, left, "two").ok());
  EXPECT_FALSE(lower_schema_within(schema, true, left, "three").ok());
  EXPECT_EQ(left.schemas, 1);
}

}  // namespace
}  // namespace moracle::serve::schema_test

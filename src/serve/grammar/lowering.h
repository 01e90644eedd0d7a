// Rewrites a JSON schema for the grammar engine, one subschema at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "serve/grammar/schema.h"
#include "serve/grammar/schema_keywords.h"
#include "serve/grammar/schema_pattern.h"

namespace moracle::serve {

class SchemaLowering {
 public:
  SchemaLowering(const SchemaJson& root, bool strict, const SchemaLimits& limits,
                 const std::string& place)
      : root_(root), strict_(strict), limits_(limits), place_(place) {}
  Result<std::string> run();
  /// The limits less what the schema has used.
  SchemaLimits left() const;

 private:
  // A schema that a $ref names; the first is the root.
  struct Definition {
    std::string place;
    SchemaJson lowered;
    std::vector<size_t> direct;  // definitions that apply to the same value
  };
  // A subschema in the document.
  struct Subschema {
    const SchemaJson& json;
    std::string place;
    bool is_direct = false;  // applies to the definition's own value
    Subschema member(const std::string& key) const;
  };
  struct Branches {
    std::string place;
    SchemaJson lowered;
  };

  Result<SchemaJson> lower(const Subschema& schema);
  Result<SchemaJson> lower_ref(const Subschema& schema);
  Result<SchemaJson> lower_values(const Subschema& schema, const std::string& keyword);
  Result<SchemaJson> lower_branches(const Subschema& schema, const std::string& keyword);
  Result<SchemaJson> lower_types(const Subschema& schema);
  Result<SchemaJson> lower_type(const Subschema& schema, const std::string& type);
  Result<SchemaJson> lower_string(const Subschema& schema);
  Result<SchemaJson> lower_number(const Subschema& schema, bool is_integer);
  Status lower_multiple(const Subschema& schema, SchemaJson& lowered, double min, double max);
  Result<SchemaJson> lower_array(const Subschema& schema);
  Result<SchemaJson> lower_object(const Subschema& schema);
  Result<SchemaJson> lower_other_members(const Subschema& schema, SchemaJson values,
                                         const std::vector<std::string>& names);
  Status lower_members(const Subschema& schema, SchemaJson& lowered,
                       std::vector<std::string>& names);
  // Resolves a $ref path and adds the schema to the definitions. Errors: no such schema.
  Result<size_t> define(const std::string& reference, const std::string& place);
  // Errors: a sibling of `keyword` that is neither `other` nor an annotation.
  Status check_alone(const Subschema& schema, std::string_view keyword,
                     std::string_view other = {}) const;
  Result<int64_t> read_count(const Subschema& schema, const std::string& key, int64_t absent) const;

  // Checks of the whole lowered schema.
  Status check_cycles() const;
  Status check_accepts() const;
  bool accepts(const SchemaJson& lowered, const std::vector<bool>& known) const;
  Status check_branches() const;
  const SchemaJson& resolved(const SchemaJson& lowered) const;
  bool are_disjoint(const SchemaJson& one, const SchemaJson& other) const;
  bool are_told_apart_by_a_member(const SchemaJson& one, const SchemaJson& other) const;

  Status count_positions(int64_t num, const std::string& place);
  Status count(int64_t& counter, int64_t more, int64_t limit, const char* of,
               const std::string& place) const;

  const SchemaJson& root_;
  const bool strict_;
  const SchemaLimits limits_;
  const std::string place_;
  std::vector<Definition> definitions_;
  std::map<std::string, size_t> defined_;  // by $ref
  size_t current_ = 0;                     // index of the current definition
  std::vector<Branches> exclusive_;        // branches of oneOf
  mutable int64_t num_compared_ = 0;       // branch pairs compared so far
  int64_t num_schemas_ = 0, num_values_ = 0, num_bytes_ = 0, num_positions_ = 0;
};

/// Error for an invalid or unsupported schema.
Error wrong_schema(const std::string& place, std::string need, std::string fact);
/// Prints a value in at most 60 bytes.
std::string shown_in_schema(const SchemaJson& value);

}  // namespace moracle::serve

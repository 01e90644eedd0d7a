// JSON schemas of requests, checked and rewritten for the engine, which takes a keyword that it
// does not know as absent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// Bounds of one schema for the engine. Compiling one at all of them takes about 1 s.
struct SchemaLimits {
  int64_t schemas = 512;           ///< with those that $ref names
  int64_t optional_members = 200;  ///< of one object; the time grows with the square
  int64_t values = 1000;           ///< of all enum and const
  int64_t value_bytes = 256;       ///< of one value; the time grows with the square
  int64_t bytes = 32768;           ///< of all names and values
  /// Of bounded strings, patterns and formats. One with p character positions counts p + p²/64. The
  /// time of a position grows with the vocabulary: 1.3 ms with 4,096 tokens, 43 ms with 152
  /// thousand.
  int64_t positions = 2048;

  static SchemaLimits of_vocabulary(int64_t vocab_size);
};

/// A schema that has only what the engine honours. Every text that follows it follows `schema`.
/// `strict`: objects that list members have no others. `place` names the schema in errors.
/// Errors, kInvalidArgument with the place inside the schema: a keyword that is unknown or has no
/// effect in the engine; a value of a wrong type; a schema that accepts nothing; a limit.
Result<std::string> lower_schema(const nlohmann::ordered_json& schema, bool strict,
                                 const SchemaLimits& limits, const std::string& place);

}  // namespace moracle::serve

// Checks JSON schemas of requests and rewrites them for the grammar engine, which silently ignores
// unknown keywords.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// Limits of one schema. Compiling a schema at all limits takes about 1 s.
struct SchemaLimits {
  int64_t schemas = 512;           ///< subschemas, with the targets of $ref
  int64_t optional_members = 200;  ///< per object; compile time grows quadratically
  int64_t values = 1000;           ///< of all enum and const keywords
  int64_t value_bytes = 256;       ///< per value; compile time grows quadratically
  int64_t bytes = 32768;           ///< of all names and values together
  /// Automaton positions of bounded strings, patterns and formats. One with p character positions
  /// counts p + p²/64. Compile time per position grows with the vocabulary: 1.3 ms for 4,096
  /// tokens, 43 ms for 152,000.
  int64_t positions = 2048;

  static SchemaLimits of_vocabulary(int64_t vocab_size);
};

/// Returns a schema with only keywords that the engine enforces. Its texts all match `schema`.
/// `strict`: objects with listed members allow no others. `place` names the schema in errors.
/// Errors, kInvalidArgument with the place in the schema: an unknown keyword, or one that the
/// engine ignores; a value of a wrong type; a schema that accepts nothing; an exceeded limit.
Result<std::string> lower_schema(const nlohmann::ordered_json& schema, bool strict,
                                 const SchemaLimits& limits, const std::string& place);
/// The same for one of several schemas that share limits: reduces `left` after a success.
Result<std::string> lower_schema_within(const nlohmann::ordered_json& schema, bool strict,
                                        SchemaLimits& left, const std::string& place);

}  // namespace moracle::serve

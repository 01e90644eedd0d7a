#include "serve/grammar/schema.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "serve/grammar/lowering.h"

namespace moracle::serve {

SchemaLimits SchemaLimits::of_vocabulary(int64_t vocab_size) {
  constexpr int64_t kTokenPositions = int64_t{1} << 23, kLeast = 128;
  SchemaLimits limits;
  limits.positions =
      std::clamp(kTokenPositions / std::max<int64_t>(vocab_size, 1), kLeast, limits.positions);
  return limits;
}

Result<std::string> lower_schema(const nlohmann::ordered_json& schema, bool strict,
                                 const SchemaLimits& limits, const std::string& place) {
  return SchemaLowering(schema, strict, limits, place).run();
}

Result<std::string> lower_schema_within(const nlohmann::ordered_json& schema, bool strict,
                                        SchemaLimits& left, const std::string& place) {
  SchemaLowering lowering(schema, strict, left, place);
  MORACLE_TRY(std::string lowered, lowering.run());
  left = lowering.left();
  return lowered;
}

}  // namespace moracle::serve

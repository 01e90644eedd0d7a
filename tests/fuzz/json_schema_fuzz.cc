// libFuzzer: the bytes are the JSON schema of a request. The result is a schema for the engine, or
// an Error with the place of its reason.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/json/json_text.h"
#include "serve/grammar/schema.h"

namespace moracle::testing::json_schema_fuzz {

int run(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!moracle::check_json_text(text, "")) return 0;
  const Json schema = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return 0;
  for (const bool strict : {false, true}) {
    const auto lowered = moracle::serve::lower_schema(schema, strict, {}, "schema");
    if (lowered) {
      if (!Json::parse(*lowered, nullptr, false).is_object()) std::abort();
    } else if (!lowered.error().place.starts_with("schema") || lowered.error().need.empty() ||
               lowered.error().fact.empty()) {
      std::abort();
    }
  }
  return 0;
}

}  // namespace moracle::testing::json_schema_fuzz

#include "serve/dialects/generation_request.h"

#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {

Result<nlohmann::json> parse_body(const std::string& body) {
  MORACLE_TRY(const nlohmann::ordered_json parsed, parse_ordered_json(body));
  if (parsed.is_object()) return nlohmann::json(parsed);
  return Error{ErrorKind::kBadFile, "", "body", "an object", "it is another value"};
}

// Check ids directly: one JsonField per id would take more memory than the parsed body.
Result<std::vector<int32_t>> read_token_ids(const JsonField& field) {
  if (!field.value().is_array()) return field.bad("an array");
  std::vector<int32_t> ids;
  ids.reserve(field.value().size());
  for (const nlohmann::json& value : field.value()) {
    const auto id = JsonField(value, field.file()).integer(0, INT32_MAX);
    if (!id) {
      Error error = id.error();
      error.place = str(field.place(), '[', ids.size(), ']');
      return error;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace moracle::serve

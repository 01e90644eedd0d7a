#include "base/json/json_file.h"

#include "base/json/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<nlohmann::json> read_json_file(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  MORACLE_TRY(nlohmann::json json, parse_json(text, path));
  if (json.is_object()) return json;
  return Error{ErrorKind::kBadFile, path, "", "a JSON object",
               str("it is of type ", json.type_name())};
}

}  // namespace moracle

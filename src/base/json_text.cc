#include "base/json_text.h"

#include "base/small_file.h"
#include "base/text.h"

namespace moracle {
namespace {

// The maximum nesting depth of arrays and objects. For invalid JSON the result is not too low.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = ++depth > deepest ? depth : deepest;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Status check_json_text(std::string_view text, const std::string& file) {
  constexpr int kMaxDepth = 64;
  if (text.size() > kMaxConfigBytes) {
    return Error{ErrorKind::kBadFile, file, "", str("at most ", kMaxConfigBytes, " bytes of JSON"),
                 str("it has ", text.size())};
  }
  if (depth_of(text) > kMaxDepth) {
    return Error{ErrorKind::kBadFile, file, "",
                 str("JSON of at most ", kMaxDepth, " levels of nesting"), "it has more"};
  }
  if (text.find('\0') != std::string_view::npos)
    return Error{ErrorKind::kBadFile, file, "", "valid JSON", "it has a NUL byte"};
  return {};
}

}  // namespace moracle

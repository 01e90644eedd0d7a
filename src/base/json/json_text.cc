#include "base/json/json_text.h"

#include <algorithm>

#include "base/small_file.h"
#include "base/text.h"

namespace moracle {
namespace {

// How deep a position is in arrays and objects.
class Nesting {
 public:
  int depth() const { return depth_; }
  void take(char c) {
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_) {
      escaped_ = c == '\\';
      in_string_ = c != '"';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '[' || c == '{') {
      ++depth_;
    } else if (c == ']' || c == '}') {
      --depth_;
    }
  }

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// The maximum nesting depth of arrays and objects. For invalid JSON the result is not too low.
int depth_of(std::string_view text) {
  Nesting nesting;
  int deepest = 0;
  for (const char c : text) {
    nesting.take(c);
    deepest = std::max(deepest, nesting.depth());
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

size_t json_length(std::string_view text) {
  Nesting nesting;
  for (size_t i = 0; i < text.size(); ++i) {
    nesting.take(text[i]);
    if (nesting.depth() <= 0) return i > 0 && nesting.depth() == 0 ? i + 1 : 0;
  }
  return 0;
}

}  // namespace moracle

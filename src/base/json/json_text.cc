#include "base/json/json_text.h"

#include <algorithm>

#include "base/json/non_finite_json.h"
#include "base/printable.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

// Tracks the nesting depth of arrays and objects, character by character.
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

// "line 3, column 12" of the byte at `position`.
std::string place_of(std::string_view text, size_t position) {
  const std::string_view before = text.substr(0, position);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::string_view line = before.substr(before.rfind('\n') + 1);
  const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // one for each code point
  });
  return str("line ", lines + 1, ", column ", columns + 1);
}

// Finds the first syntax error.
class SyntaxCheck final : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t position = 0;  // counts from 1; 0: the text is empty
  std::string what;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&,
                   const nlohmann::detail::exception& error) override {
    position = at;
    what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while …"
    for (const std::string_view before : {"] ", ": "}) {
      const size_t end = what.find(before);
      if (end != what.npos) what.erase(0, end + before.size());
    }
    return false;
  }
};

Error syntax_error(std::string_view text, const std::string& file) {
  SyntaxCheck check;
  nlohmann::json::sax_parse(text.begin(), text.end(), &check);
  // Config quotes non-finite numbers before it parses; columns count what the file has.
  std::string read(text.substr(0, check.position));
  if (check.position > text.size()) read += ' ';  // the error is the end of the text
  read = unquote_non_finite(std::move(read));
  return {
      ErrorKind::kBadFile, file, place_of(read, std::max<size_t>(read.size(), 1) - 1), "valid JSON",
      text.empty() ? "the file is empty" : "found a " + printable(unquote_non_finite(check.what))};
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file) {
  MORACLE_CHECK(check_json_text(text, file));
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                              /*allow_exceptions=*/false);
  if (json.is_discarded()) return syntax_error(text, file);
  return json;
}

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

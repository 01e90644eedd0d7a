#include "base/json/non_finite_json.h"

#include <limits>

namespace moracle {
namespace {

struct Word {
  std::string_view text;    // as Python writes it
  std::string_view quoted;  // marked by a NUL, with which no string of a checkpoint begins
  double value;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Word kWords[] = {
    {"NaN", R"("\u0000NaN")", std::numeric_limits<double>::quiet_NaN()},
    {"Infinity", R"("\u0000Infinity")", kInfinity},
    {"-Infinity", R"("\u0000-Infinity")", -kInfinity},
};

// transformers 5 writes {"__float__": "Infinity"}.
const nlohmann::json* wrapped_float(const nlohmann::json& value) {
  if (!value.is_object() || value.size() != 1) return nullptr;
  const auto inside = value.find("__float__");
  return inside != value.end() && inside->is_string() ? &*inside : nullptr;
}

const Word* word_at(std::string_view text, size_t at) {
  for (const Word& word : kWords) {
    if (text.substr(at).starts_with(word.text)) return &word;
  }
  return nullptr;
}

}  // namespace

std::string quote_non_finite(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const Word* const word = in_string ? nullptr : word_at(text, i);
    if (word != nullptr) {
      quoted += word->quoted;
      i += word->text.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) quoted += text[i++];
    quoted += text[i];
  }
  return quoted;
}

// check_json_text limits the depth of the recursion.
void restore_non_finite(nlohmann::json& value) {
  if (const nlohmann::json* const inside = wrapped_float(value)) {
    for (const Word& word : kWords) {
      if (*inside != word.text) continue;
      value = word.value;
      return;
    }
  }
  if (value.is_structured()) {
    for (nlohmann::json& item : value) restore_non_finite(item);
    return;
  }
  if (!value.is_string()) return;
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.empty() || text[0] != '\0') return;
  for (const Word& word : kWords) {
    if (text.substr(1) != word.text) continue;
    value = word.value;
    return;
  }
}

std::string unquote_non_finite(std::string text) {
  for (const Word& word : kWords) {
    for (size_t at = text.find(word.quoted); at != text.npos; at = text.find(word.quoted, at))
      text.replace(at, word.quoted.size(), word.text);
  }
  return text;
}

}  // namespace moracle

#include "serve/model_set/model_metrics.h"

#include <algorithm>

namespace moracle::serve {
namespace {

std::string label_value(const std::string& text) {
  std::string value;
  for (const char c : text) {
    if (c == '"' || c == '\\') value += '\\';
    value += c == '\n' ? ' ' : c;
  }
  return value;
}

}  // namespace

ModelMetrics::Family& ModelMetrics::family(std::string_view name) {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const Family& each) { return each.name == name; });
  if (found != families_.end()) return *found;
  return families_.emplace_back(Family{std::string(name), "", ""});
}

void ModelMetrics::add(const std::string& model, std::string_view text) {
  const std::string label = "model=\"" + label_value(model) + "\"";
  Family* current = nullptr;
  bool is_new = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("# ")) {
      std::string_view name = line.substr(line.find(' ', 2) + 1);
      name = name.substr(0, name.find(' '));
      if (!current || current->name != name) {
        current = &family(name);
        is_new = current->head.empty();
      }
      if (is_new) current->head += std::string(line) + "\n";
      continue;
    }
    if (line.empty() || !current) continue;
    const size_t name_end = std::min(line.find_first_of("{ "), line.size());
    const std::string_view rest = line.substr(name_end);
    current->samples += std::string(line.substr(0, name_end)) + "{" + label;
    current->samples +=
        rest.starts_with('{') ? "," + std::string(rest.substr(1)) : "}" + std::string(rest);
    current->samples += '\n';
  }
}

std::string ModelMetrics::text() const {
  std::string text;
  for (const Family& each : families_) text += each.head + each.samples;
  return text;
}

}  // namespace moracle::serve

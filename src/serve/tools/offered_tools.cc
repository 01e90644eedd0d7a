#include "base/try.h"
#include "serve/tools/tool_call.h"

namespace moracle::serve {
namespace {

bool allows_text(const nlohmann::json& type) {
  if (!type.is_array()) return type == "string";
  for (const nlohmann::json& each : type) {
    if (each == "string") return true;
  }
  return false;
}

}  // namespace

Result<OfferedTools> OfferedTools::read(const JsonField& tools) {
  MORACLE_TRY(const std::vector<JsonField> items, tools.items());
  OfferedTools offered;
  for (const JsonField& item : items) {
    if (item["type"].value() != "function") return item["type"].unsupported("the type function");
    MORACLE_CHECK(offered.add(item["function"]));
  }
  return offered;
}

Status OfferedTools::add(const JsonField& function, const char* parameters) {
  MORACLE_TRY(const std::string name, function["name"].text());
  if (name.empty()) return function["name"].bad("a name");
  MORACLE_TRY(const bool is_strict, function["strict"].flag_or(false));
  if (is_strict) strict_.insert(name);
  const JsonField properties = function[parameters]["properties"];
  std::set<std::string>& texts = texts_[name];
  if (!properties.is_object()) return {};
  for (const auto& [key, value] : properties.value().items()) {
    if (allows_text(properties[key]["type"].value())) texts.insert(key);
  }
  return {};
}

bool OfferedTools::is_text(const std::string& name, const std::string& parameter) const {
  const auto found = texts_.find(name);
  return found != texts_.end() && found->second.contains(parameter);
}

}  // namespace moracle::serve

#include "text/chat_values.h"

#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"

namespace moracle {
namespace {

using OrderedJson = nlohmann::ordered_json;

Status check_utf8(std::string_view text, std::string place) {
  const auto at = first_invalid_utf8(text);
  if (!at) return {};
  return Error{ErrorKind::kInvalidArgument, "", std::move(place), "UTF-8",
               str("byte ", *at, " is not part of a character")};
}

Result<jinja::Value> number_value(const OrderedJson& json) {
  if (json.is_number_float()) return jinja::Value(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return jinja::unsupported(str("the integer ", json.get<uint64_t>(), ", beyond 64 bits"));
  }
  return jinja::Value(json.get<int64_t>());
}

Result<jinja::Value> object_value(jinja::Heap& heap, const OrderedJson& json) {
  std::vector<std::pair<jinja::Value, jinja::Value>> entries;
  for (const auto& [key, value] : json.items()) {
    MORACLE_TRY(jinja::Value name, heap.text(key));
    MORACLE_TRY(jinja::Value each, to_value(heap, value));
    entries.emplace_back(std::move(name), std::move(each));
  }
  return heap.mapping(std::move(entries));
}

}  // namespace

Result<jinja::Value> to_value(jinja::Heap& heap, std::span<const ChatMessage> messages) {
  jinja::Values list;
  for (size_t i = 0; i < messages.size(); ++i) {
    MORACLE_CHECK(check_utf8(messages[i].role, str("message ", i, ", role")));
    MORACLE_CHECK(check_utf8(messages[i].content, str("message ", i, ", content")));
    std::vector<std::pair<jinja::Value, jinja::Value>> entries;
    for (const auto& [key, text] :
         {std::pair("role", &messages[i].role), std::pair("content", &messages[i].content)}) {
      MORACLE_TRY(jinja::Value name, heap.text(key));
      MORACLE_TRY(jinja::Value value, heap.text(*text));
      entries.emplace_back(std::move(name), std::move(value));
    }
    MORACLE_TRY(jinja::Value message, heap.mapping(std::move(entries)));
    list.push_back(std::move(message));
  }
  return heap.list(std::move(list));
}

// check_json_text bounds the depth of this recursion.
Result<jinja::Value> to_value(jinja::Heap& heap, const OrderedJson& json) {
  if (json.is_null()) return jinja::Value(jinja::None{});
  if (json.is_boolean()) return jinja::Value(json.get<bool>());
  if (json.is_number()) return number_value(json);
  if (json.is_string()) return heap.text(json.get_ref<const std::string&>());
  if (json.is_object()) return object_value(heap, json);
  jinja::Values list;
  for (const OrderedJson& item : json) {
    MORACLE_TRY(jinja::Value value, to_value(heap, item));
    list.push_back(std::move(value));
  }
  return heap.list(std::move(list));
}

Result<OrderedJson> parse_chat_json(const std::string& text, const char* place,
                                    OrderedJson::value_t type) {
  const auto wrong = [&](std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", place,
                 type == OrderedJson::value_t::array ? "a JSON array" : "a JSON object",
                 std::move(fact)};
  };
  Result<OrderedJson> json = parse_ordered_json(text);
  if (!json) {
    Error error = json.error();
    error.place = error.place.empty() ? place : str(place, '.', error.place);
    return error;
  }
  if (json->type() == type) return json;
  return wrong(str("it is of type ", json->type_name()));
}

void name_reasoning(OrderedJson& messages) {
  for (OrderedJson& message : messages) {
    if (!message.is_object()) continue;
    for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
      const auto found = message.find(key);
      if (found == message.end() || found->is_null()) continue;
      const OrderedJson reasoning = *found;
      OrderedJson named = {{"thinking", reasoning}};  // first, for templates that print a message
      auto& members = named.get_ref<OrderedJson::object_t&>();
      for (auto& [name, value] : message.get_ref<OrderedJson::object_t&>()) {
        if (name == "thinking")
          members.front().second = std::move(value);
        else
          members.emplace_back(name, std::move(value));  // skips the search for an equal key
      }
      named["reasoning_content"] = reasoning;
      message = std::move(named);
      break;
    }
  }
}

}  // namespace moracle

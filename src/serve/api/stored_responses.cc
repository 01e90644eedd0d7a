// GET and DELETE of stored responses, and of their input items.
#include <algorithm>
#include <charconv>

#include "base/json/ordered_json.h"
#include "base/printable.h"
#include "base/text.h"
#include "serve/api/api.h"
#include "serve/api/query.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kResponses = "/v1/responses/", kInputItems = "/input_items";

HttpReply no_such_response() {
  return to_reply({.status = 404,
                   .message = "no stored response has this id; they expire, and the oldest are "
                              "evicted",
                   .code = "not_found"});
}

HttpReply wrong_query(std::string field, const std::string& need, const std::string& value) {
  std::string message = field + ": needs " + need + "; it is " + quote(value);
  return to_reply({.message = std::move(message), .param = std::move(field)});
}

// Clients send items without ids and states, and texts as plain strings. The list has all in full.
Json listed_item(Json item, const std::string& response, size_t index) {
  const auto has_text = [&](const char* key) {
    return item.contains(key) && item[key].is_string();
  };
  if (!has_text("type")) item["type"] = "message";
  if (!has_text("status") && item["type"] != "reasoning") item["status"] = "completed";
  if (!has_text("id")) {
    const bool is_message = item["type"] == "message";
    item["id"] =
        str(is_message ? "msg_" : "item_", response.substr(response.find('_') + 1), "_", index);
  }
  if (item["type"] != "message" || !item["content"].is_string()) return item;
  const bool is_answer = item["role"] == "assistant";
  Json part = {{"type", is_answer ? "output_text" : "input_text"}, {"text", item["content"]}};
  if (is_answer) part["annotations"] = Json::array();
  item["content"] = Json::array({std::move(part)});
  return item;
}

HttpReply input_items(const StoredResponse& response, const std::string& id,
                      const std::string& query) {
  int64_t limit = 20;
  if (const auto given = query_value(query, "limit")) {
    const char* const end = given->data() + given->size();
    const auto [at, error] = std::from_chars(given->data(), end, limit);
    if (error != std::errc() || at != end || limit < 1 || limit > 100)
      return wrong_query("limit", "a whole number from 1 to 100", *given);
  }
  const std::string order = query_value(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") return wrong_query("order", "asc or desc", order);
  const auto items = parse_ordered_json(response.items);
  if (!items) return no_such_response();
  std::vector<Json> all;
  for (size_t i = 0; i < response.num_inputs; ++i) all.push_back(listed_item((*items)[i], id, i));
  if (order == "desc") std::reverse(all.begin(), all.end());
  auto first = all.begin();
  if (const auto after = query_value(query, "after"); after && !after->empty()) {
    first = std::find_if(all.begin(), all.end(),
                         [&](const Json& item) { return item["id"] == *after; });
    if (first == all.end()) return wrong_query("after", "the id of an item of the list", *after);
    ++first;
  }
  const auto last = first + std::min<ptrdiff_t>(limit, all.end() - first);
  Json data = Json::array();
  for (auto item = first; item != last; ++item) data.push_back(*item);
  return {.body = dump({{"object", "list"},
                        {"first_id", data.empty() ? Json() : data.front()["id"]},
                        {"last_id", data.empty() ? Json() : data.back()["id"]},
                        {"has_more", last != all.end()},
                        {"data", std::move(data)}})};
}

}  // namespace

HttpReply Api::one_response(const HttpRequest& request) {
  std::string id = without_percent(std::string_view(request.path).substr(kResponses.size()));
  const bool lists_items = id.ends_with(kInputItems);
  if (lists_items) id.resize(id.size() - kInputItems.size());
  const auto found = responses_.find(id);
  if (!found) return no_such_response();
  if (lists_items) return input_items(*found, id, request.query);
  if (const auto stream = query_value(request.query, "stream"); stream && *stream != "false")
    return wrong_query("stream", "false, because a stored response is complete", *stream);
  return {.body = found->reply};
}

HttpReply Api::delete_response(const HttpRequest& request) {
  const std::string id = without_percent(std::string_view(request.path).substr(kResponses.size()));
  if (!responses_.remove(id)) return no_such_response();
  return {.body = dump({{"id", id}, {"object", "response"}, {"deleted", true}})};
}

}  // namespace moracle::serve

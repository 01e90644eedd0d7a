// Builds the messages of a chat template. Dialects split an assistant's message into items or
// blocks; templates need them in one message.
#pragma once

#include <map>
#include <string_view>

#include "serve/api/api_error.h"
#include "serve/tools/tool_dialect.h"

namespace moracle::serve {

/// The arguments of a call as the template takes them: an object, or its text. `given` is an
/// object, the text of one, or nothing. Empty: another value.
std::optional<Json> template_arguments(const Json& given, const ToolDialect& dialect);

class ChatMessages {
 public:
  /// `dialect` must outlive this object.
  explicit ChatMessages(const ToolDialect& dialect) : dialect_(dialect) {}

  /// Adds text. Text of an assistant joins its last message, and system text at the start joins
  /// the first message: many templates accept one system message only.
  void add_text(const std::string& role, const std::string& text);
  void add_reasoning(const std::string& text);
  /// False: the arguments are no object.
  bool add_call(const std::string& id, const std::string& name, const Json& arguments);
  void add_result(const std::string& id, const std::string& text);
  bool empty() const { return messages_.empty(); }
  /// True if the last message is the assistant's.
  bool ends_with_assistant() const;
  Json take();

 private:
  Json& assistant();

  const ToolDialect& dialect_;
  Json messages_ = Json::array();
  std::map<std::string, std::string> names_;  // functions, by id of the call
};

}  // namespace moracle::serve

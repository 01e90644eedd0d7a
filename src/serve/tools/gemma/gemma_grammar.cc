#include "serve/tools/gemma/gemma_grammar.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json/ordered_json.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

using GemmaJson = nlohmann::ordered_json;

// A text ends at its first <|"|>. The rules text1 to text4 have read a part of this tag.
constexpr std::string_view kGemmaRules = R"(
value ::= text | number | "true" | "false" | "null" | object | array
text ::= "<|\"|>" text0 "<|\"|>"
text0 ::= [^<] text0 | "<" text1 | ""
text1 ::= "<" text1 | "|" text2 | [^<|] text0 | ""
text2 ::= "<" text1 | "\"" text3 | [^<"] text0 | ""
text3 ::= "<" text1 | "|" text4 | [^<|] text0 | ""
text4 ::= "<" text1 | [^<>] text0 | ""
integer ::= "-"? ("0" | [1-9] [0-9]{0,17})
number ::= integer ("." [0-9]{1,17})? ([eE] [+-]? [0-9]{1,3})?
key ::= [A-Za-z0-9_$.\-]{1,64}
object ::= "{" (key ":" value ("," key ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
)";

// A literal of EBNF.
std::string gemma_literal(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02X", byte);
    if (c == '"' || c == '\\')
      quoted += std::string("\\") + c;
    else if (byte < 0x20)
      quoted += escaped;
    else
      quoted += c;
  }
  return quoted + "\"";
}

// The classes of a lowered pattern, \u{41}, in the form of EBNF.
std::string ebnf_pattern(std::string_view pattern) {
  std::string text;
  while (!pattern.empty()) {
    if (pattern.starts_with("(?:")) {
      text += '(';
      pattern.remove_prefix(3);
    } else if (pattern.starts_with("\\u{")) {
      const size_t end = pattern.find('}');
      const std::string_view digits = pattern.substr(3, end - 3);
      text += "\\U" + std::string(8 - std::min<size_t>(digits.size(), 8), '0');
      text += digits;
      pattern.remove_prefix(end + 1);
    } else {
      if (pattern[0] == '[') text += ' ';
      text += pattern[0];
      pattern.remove_prefix(1);
    }
  }
  return text;
}

class GemmaGrammar {
 public:
  explicit GemmaGrammar(const std::string& place) : place_(place) {}

  Result<std::string> write(const GemmaJson& schema) {
    MORACLE_TRY(const std::string whole, rule(schema));
    add("definition0", whole);
    if (schema.contains("$defs")) {
      for (const auto& [name, definition] : schema["$defs"].items()) {
        MORACLE_TRY(const std::string one, rule(definition));
        add("definition" + name, one);
      }
    }
    return "root ::= definition0\n" + rules_ + std::string(kGemmaRules);
  }

 private:
  Error wrong(std::string need, std::string fact) const {
    return {ErrorKind::kUnsupported, "", place_, std::move(need), std::move(fact)};
  }
  void add(const std::string& name, const std::string& body) {
    rules_ += str(name, " ::= ", body, "\n");
  }
  std::string named(const std::string& body) {
    std::string name = str("rule", num_rules_++);
    add(name, body);
    return name;
  }

  // The body of a schema's rule.
  Result<std::string> rule(const GemmaJson& schema) {
    if (schema.contains("$ref")) {
      const std::string path = schema["$ref"];
      return "definition" + (path == "#" ? "0" : path.substr(path.rfind('/') + 1));
    }
    if (schema.contains("enum")) return joined(schema["enum"], &GemmaGrammar::constant);
    if (schema.contains("anyOf")) return joined(schema["anyOf"], &GemmaGrammar::rule);
    if (!schema.contains("type")) return std::string("value");
    const std::string type = schema["type"];
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    if (type == "boolean") return std::string(R"(("true" | "false"))");
    if (type == "null") return std::string(R"("null")");
    if (type == "string" && schema.contains("pattern")) {
      const std::string pattern = schema["pattern"];
      return named(str(R"("<|\"|>" ()", ebnf_pattern(pattern), R"() "<|\"|>")"));
    }
    for (const char* key :
         {"format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (schema.contains(key))
        return wrong("schemas without formats and ranges", str("one has ", key));
    }
    return type == "string" ? std::string("text") : type;
  }

  Result<std::string> joined(const GemmaJson& options,
                             Result<std::string> (GemmaGrammar::*option)(const GemmaJson&)) {
    std::string body;
    for (const GemmaJson& each : options) {
      MORACLE_TRY(const std::string one, (this->*option)(each));
      body += (body.empty() ? "" : " | ") + one;
    }
    return named(body);
  }

  // The text of a value as Gemma's template prints it.
  Result<std::string> constant(const GemmaJson& value) {
    MORACLE_TRY(const std::string text, constant_text(value));
    return gemma_literal(text);
  }
  Result<std::string> constant_text(const GemmaJson& value) {
    if (value.is_string()) {
      const std::string text = value;
      if (text.find("<|\"|>") != std::string::npos)
        return wrong("values without Gemma's quote", "one has it");
      return "<|\"|>" + text + "<|\"|>";
    }
    if (!value.is_structured()) return value.dump();
    std::string inner;
    for (const auto& [key, member] : value.items()) {
      if (!inner.empty()) inner += ',';
      if (value.is_object()) {
        MORACLE_CHECK(check_key(key));
        inner += key + ":";
      }
      MORACLE_TRY(const std::string one, constant_text(member));
      inner += one;
    }
    return value.is_object() ? "{" + inner + "}" : "[" + inner + "]";
  }

  Status check_key(const std::string& key) const {
    const bool is_bad = key.empty() || key.find_first_of(":,{}[]<>\"\\ \t\r\n") != key.npos;
    if (!is_bad) return {};
    return wrong("names of arguments without space, colon, comma, quote or bracket",
                 "one is " + quote(key));
  }

  Result<std::string> array(const GemmaJson& schema) {
    std::string body;
    int64_t num_first = 0;
    for (const GemmaJson& item : schema.value("prefixItems", GemmaJson::array())) {
      MORACLE_TRY(const std::string one, rule(item));
      body += (num_first++ == 0 ? "" : " \",\" ") + one;
    }
    const int64_t min = schema.value("minItems", int64_t{0});
    const int64_t max = schema.value("maxItems", int64_t{-1});
    if (num_first > 0 && min < num_first)
      return wrong("prefixItems that are all required by minItems", "some may be left out");
    const bool is_closed = schema.contains("items") && schema["items"] == false;
    if (!is_closed) {
      MORACLE_TRY(std::string item, rule(schema.value("items", GemmaJson::object())));
      item = named(item);
      // With one item before them, all others begin with a comma.
      const int64_t least = std::max<int64_t>(min - std::max<int64_t>(num_first, 1), 0);
      const int64_t most = max < 0 ? -1 : max - std::max<int64_t>(num_first, 1);
      const std::string range =
          str("{", least, ",", most < 0 ? std::string() : str(std::max<int64_t>(most, 0)), "}");
      const std::string more = most == 0 ? std::string() : str("(\",\" ", item, ")", range);
      if (num_first > 0)
        body += " " + more;
      else if (max != 0)
        body = min > 0 ? item + " " + more : str("(", item, " ", more, ")?");
    }
    return named(str("\"[\" ", body, " \"]\""));
  }

  // Each rule "restN" holds the members from N on behind an earlier one, and "firstN" without one.
  Result<std::string> object(const GemmaJson& schema) {
    if (schema.contains("patternProperties") || schema.contains("propertyNames"))
      return wrong("objects with listed members", "one has others beside them");
    if (!schema.contains("properties")) {
      const GemmaJson others = schema.value("additionalProperties", GemmaJson(false));
      if (others == false) return std::string(R"("{}")");
      MORACLE_TRY(std::string value, rule(others.is_object() ? others : GemmaJson::object()));
      value = named(value);
      return named(str(R"("{" (key ":" )", value, R"( ("," key ":" )", value, R"()*)? "}")"));
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : schema["properties"].items()) names.push_back(name);
    const auto lowered = [](std::string text) {
      for (char& c : text) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      }
      return text;
    };
    std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return lowered(a) < lowered(b);
    });
    const GemmaJson required = schema.value("required", GemmaJson::array());
    std::string rest = "\"\"", first = "\"\"";
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      MORACLE_CHECK(check_key(*name));
      MORACLE_TRY(const std::string value, rule(schema["properties"][*name]));
      const std::string member = named(str(gemma_literal(*name + ":"), " ", value));
      const bool is_needed = std::find(required.begin(), required.end(), *name) != required.end();
      first = named(str(member, " ", rest, is_needed ? std::string() : " | " + first));
      rest = named(str("\",\" ", member, " ", rest, is_needed ? std::string() : " | " + rest));
    }
    return named(str("\"{\" ", first, " \"}\""));
  }

  const std::string place_;
  std::string rules_;
  int64_t num_rules_ = 0;
};

}  // namespace

Result<std::string> gemma_grammar(const std::string& lowered, const std::string& place) {
  MORACLE_TRY(const GemmaJson schema, parse_ordered_json(lowered));
  return GemmaGrammar(place).write(schema);
}

}  // namespace moracle::serve

#include "serve/dialects/structured_outputs.h"

#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/dialects/job_fields.h"
#include "serve/grammar/schema.h"
#include "serve/grammar/schema_pattern.h"

namespace moracle::serve {
namespace {

constexpr size_t kMaxGrammarBytes = 16384;

struct Source {
  JsonField field;
  const Json* ordered = nullptr;  // the field with the order of its members
  std::string kind;               // json, json_object, regex, choice or grammar
};

// All fields that constrain the answer.
Result<std::vector<Source>> find_sources(const JsonField& body, const Json& ordered) {
  std::vector<Source> sources;
  for (const char* kind : {"json", "regex", "choice", "grammar"}) {
    const std::string key = str("guided_", kind);
    if (!body[key].is_null()) sources.push_back({body[key], &ordered.at(key), kind});
  }
  const JsonField outputs = body["structured_outputs"];
  if (outputs.is_null()) return sources;
  if (!outputs.is_object()) return outputs.bad("an object");
  constexpr const char* kRefused[] = {"structural_tag", "whitespace_pattern",
                                      "disable_any_whitespace", "disable_additional_properties"};
  MORACLE_CHECK(refuse_fields(outputs, kRefused));
  for (const char* kind : {"json", "json_object", "regex", "choice", "grammar"}) {
    const JsonField field = outputs[kind];
    if (field.is_null() || field.value() == false) continue;
    sources.push_back({field, &ordered.at("structured_outputs").at(kind), kind});
  }
  return sources;
}

std::string tag_of(Json format) {
  return dump({{"type", "structural_tag"}, {"format", std::move(format)}});
}

Result<GrammarText> json_grammar(const Source& source, const SchemaLimits& limits) {
  GrammarText grammar{.place = source.field.place()};
  Json schema = *source.ordered;
  if (schema.is_string()) {  // the schema's text
    auto parsed = parse_ordered_json(source.ordered->get_ref<const std::string&>());
    if (!parsed) return source.field.bad("a JSON schema, or its text");
    schema = *std::move(parsed);
  }
  if (!schema.is_object()) return source.field.bad("a JSON schema, or its text");
  MORACLE_TRY(grammar.text, lower_schema(schema, /*strict=*/true, limits, grammar.place));
  return grammar;
}

Result<GrammarText> regex_grammar(const JsonField& field, const SchemaLimits& limits) {
  MORACLE_TRY(const std::string pattern, field.text());
  const auto lowered = lower_text_pattern(pattern);
  if (!lowered) {
    Error error = lowered.error();
    error.place = field.place();
    return error;
  }
  const int64_t num = lowered->num_positions;
  if (num + num * num / 64 > limits.positions) {
    return Error{ErrorKind::kInvalidArgument, "", field.place(),
                 str("a pattern of at most ", limits.positions, " positions"), "it has more"};
  }
  return GrammarText{GrammarText::Kind::kStructuralTag,
                     tag_of({{"type", "regex"}, {"pattern", lowered->text}}), field.place()};
}

Result<GrammarText> choice_grammar(const JsonField& field, const SchemaLimits& limits) {
  MORACLE_TRY(const std::vector<JsonField> items, field.items());
  if (items.empty() || static_cast<int64_t>(items.size()) > limits.values)
    return field.bad(str("1 to ", limits.values, " texts"));
  Json options = Json::array();
  int64_t bytes = 0;
  for (const JsonField& item : items) {
    MORACLE_TRY(const std::string text, item.text());
    const auto size = static_cast<int64_t>(text.size());
    if (size < 1 || size > limits.value_bytes)
      return item.bad(str("a text of 1 to ", limits.value_bytes, " bytes"));
    bytes += size;
    options.push_back({{"type", "const_string"}, {"value", text}});
  }
  if (bytes > limits.bytes) return field.bad(str("at most ", limits.bytes, " bytes in all texts"));
  return GrammarText{GrammarText::Kind::kStructuralTag,
                     tag_of({{"type", "or"}, {"elements", std::move(options)}}), field.place()};
}

Result<GrammarText> ebnf_grammar(const JsonField& field) {
  MORACLE_TRY(const std::string text, field.text());
  if (text.empty() || text.size() > kMaxGrammarBytes)
    return field.bad(str("a text of 1 to ", kMaxGrammarBytes, " bytes"));
  if (text.find("::=") == text.npos) return field.unsupported("EBNF: a rule root ::= …");
  return GrammarText{GrammarText::Kind::kStructuralTag,
                     tag_of({{"type", "grammar"}, {"grammar", text}}), field.place()};
}

}  // namespace

bool has_structured_outputs(const JsonField& body) {
  for (const char* key :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    if (!body[key].is_null()) return true;
  }
  return false;
}

Status add_structured_outputs(const JsonField& body, const Json& ordered, const ServedModel& model,
                              GrammarText& grammar) {
  MORACLE_TRY(const std::vector<Source> sources, find_sources(body, ordered));
  if (sources.empty()) return {};
  const Source& source = sources[0];
  const JsonField& field = source.field;
  if (sources.size() > 1) return sources[1].field.bad("no value beside " + field.place());
  if (!grammar.empty()) return field.bad("no value beside " + grammar.place);
  if (!model.grammars) return field.unsupported("no value: " + model.no_grammars);
  if (body["ignore_eos"].value() == true)
    return body["ignore_eos"].bad("false with " + field.place());
  if (!body["tools"].value().empty() && body["tool_choice"].value() != "none")
    return field.unsupported("a request without tools");
  const SchemaLimits limits = SchemaLimits::of_vocabulary(model.vocab_size);
  if (source.kind == "json") {
    MORACLE_TRY(grammar, json_grammar(source, limits));
  } else if (source.kind == "json_object") {
    MORACLE_CHECK(field.flag());
    grammar = {.text = R"({"type":"object"})", .place = field.place()};
  } else if (source.kind == "regex") {
    MORACLE_TRY(grammar, regex_grammar(field, limits));
  } else if (source.kind == "choice") {
    MORACLE_TRY(grammar, choice_grammar(field, limits));
  } else {
    MORACLE_TRY(grammar, ebnf_grammar(field));
  }
  return {};
}

}  // namespace moracle::serve

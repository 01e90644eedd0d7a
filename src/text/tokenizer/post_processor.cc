#include "text/tokenizer/post_processor.h"

#include <limits>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace post_processor {
namespace {

constexpr int kDeepest = 8;

// Appends the ids of a template's special token.
Status add_ids(const JsonField& token, const TokenTable& tokens, std::vector<int32_t>& ids) {
  MORACLE_TRY(const auto items, token["ids"].items());
  for (const JsonField& item : items) {
    MORACLE_TRY(const int64_t id, item.integer(0, std::numeric_limits<int32_t>::max()));
    if (tokens.find(static_cast<int32_t>(id)) == nullptr) return item.bad("the id of a token");
    ids.push_back(static_cast<int32_t>(id));
  }
  return {};
}

// A template lists special tokens and input sequences. The text is sequence A.
Result<PostProcessor> parse_template(const JsonField& field, const TokenTable& tokens) {
  MORACLE_TRY(const auto pieces, field["single"].items());
  PostProcessor processor;
  bool text_seen = false;
  for (const JsonField& piece : pieces) {
    if (piece.contains("SpecialToken")) {
      MORACLE_TRY(const std::string name, piece["SpecialToken"]["id"].text());
      MORACLE_CHECK(add_ids(field["special_tokens"][name], tokens,
                            text_seen ? processor.after : processor.before));
    } else if (piece["Sequence"]["id"].value() == "A" && !text_seen) {
      text_seen = true;
    } else {
      return piece.unsupported("a SpecialToken, or the Sequence A once");
    }
  }
  if (!text_seen) return field["single"].bad("the Sequence A");
  return processor;
}

Result<PostProcessor> parse_steps(const JsonField& field, const TokenTable& tokens, int depth) {
  MORACLE_TRY(const std::string type, field["type"].text());
  if (type == "TemplateProcessing") return parse_template(field, tokens);
  if (type == "ByteLevel") return PostProcessor{};  // changes offsets only
  if (type != "Sequence" || depth == kDeepest)
    return field["type"].unsupported("ByteLevel, TemplateProcessing or a Sequence of such");
  MORACLE_TRY(const auto items, field["processors"].items());
  PostProcessor all;
  for (const JsonField& item : items) {
    MORACLE_TRY(const PostProcessor one, parse_steps(item, tokens, depth + 1));
    all.before.insert(all.before.begin(), one.before.begin(), one.before.end());
    all.after.insert(all.after.end(), one.after.begin(), one.after.end());
  }
  return all;
}

}  // namespace
}  // namespace post_processor

Result<PostProcessor> PostProcessor::parse(const JsonField& field, const TokenTable& tokens) {
  if (field.is_null()) return PostProcessor{};
  return post_processor::parse_steps(field, tokens, 0);
}

}  // namespace moracle

#include <utility>

#include "base/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"
#include "moracle/text.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/token_bytes.h"
#include "text/tokenizer/utf8.h"

namespace moracle {

struct Tokenizer::State {
  Normalizer normalizer;
  Pretokenizer pretokenizer;
  Bpe bpe;
  AddedTokens added;
  TokenBytes bytes;

  /// Appends the ids of text without raw added tokens.
  Status encode(std::string_view text, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
    const std::string normalized = normalizer.apply(text);
    for (const auto& [range, id] : added.cut_normalized(normalized)) {
      if (id) {
        ids.push_back(*id);
        continue;
      }
      Words words{normalized.substr(range.begin, range.end - range.begin), {}};
      words.ranges.push_back({0, words.text.size()});
      MORACLE_CHECK(pretokenizer.apply(words));
      for (const TextRange& word : words.ranges) {
        const auto part = std::string_view(words.text).substr(word.begin, word.end - word.begin);
        MORACLE_CHECK(bpe.encode(part, scratch, ids));
      }
    }
    return {};
  }
};

namespace {

constexpr int kDeepest = 8;

/// Checks types: a Sequence holds its members in `list`; every other type must be one of `allowed`.
Status check_types(const JsonField& field, const char* list,
                   std::initializer_list<std::string_view> allowed, int depth = 0) {
  MORACLE_TRY(const std::string type, field["type"].text());
  if (type == "Sequence" && depth < kDeepest) {
    MORACLE_TRY(const auto items, field[list].items());
    for (const JsonField& item : items) MORACLE_CHECK(check_types(item, list, allowed, depth + 1));
    return {};
  }
  for (const std::string_view one : allowed) {
    if (type == one) return {};
  }
  return field["type"].unsupported(str(join(allowed), " or a Sequence of such"));
}

}  // namespace

Result<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file) {
  MORACLE_CHECK(check_json_text(json, file));
  const auto document = nlohmann::json::parse(json.begin(), json.end(), nullptr, false);
  const JsonField root(document, file);
  if (!root.is_object())
    return Error{ErrorKind::kBadFile, file, "", "a JSON object", "it is not a JSON object"};
  // "truncation" and "padding" are batch settings of the program that saved the file. The
  // post-processor adds special tokens and corrects positions. encode does none of this.
  if (!root["post_processor"].is_null()) {
    MORACLE_CHECK(
        check_types(root["post_processor"], "processors", {"ByteLevel", "TemplateProcessing"}));
  }
  if (root["decoder"].is_null()) return root["decoder"].unsupported("ByteLevel");
  MORACLE_CHECK(check_types(root["decoder"], "decoders", {"ByteLevel"}));

  MORACLE_TRY(Normalizer normalizer, Normalizer::parse(root["normalizer"]));
  MORACLE_TRY(Pretokenizer pretokenizer, Pretokenizer::parse(root["pre_tokenizer"]));
  MORACLE_TRY(Bpe bpe, Bpe::parse(root["model"]));
  const JsonField added_tokens = root["added_tokens"];
  MORACLE_TRY(AddedTokens added, AddedTokens::parse(added_tokens, bpe.vocabulary(), normalizer));
  MORACLE_TRY(TokenBytes bytes, TokenBytes::make(bpe.vocabulary(), added, added_tokens));
  using State = const Tokenizer::State;
  return Tokenizer(
      std::unique_ptr<State>(new State{std::move(normalizer), std::move(pretokenizer),
                                       std::move(bpe), std::move(added), std::move(bytes)}));
}

Result<Tokenizer> Tokenizer::open(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  if (is_absent(path)) {
    return Error{ErrorKind::kBadFile, path, "", "a tokenizer.json", "the file does not exist"};
  }
  MORACLE_TRY(const std::string json, read_small_file(path));
  return parse_tokenizer(json, path);
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  if (const auto bad = first_invalid_utf8(text)) {
    const int byte = static_cast<uint8_t>(text[*bad]);
    return Error{ErrorKind::kInvalidArgument, "", str("text, byte ", *bad), "valid UTF-8",
                 str("the sequence that begins with byte ", byte, " is invalid")};
  }
  std::vector<int32_t> ids;
  Bpe::Scratch scratch;
  for (const auto& [range, id] : state_->added.cut_raw(text)) {
    if (id) {
      ids.push_back(*id);
      continue;
    }
    MORACLE_CHECK(state_->encode(text.substr(range.begin, range.end - range.begin), scratch, ids));
  }
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const TokenBytes::Entry* entry = state_->bytes.find(id);
    if (!entry) {
      return Error{ErrorKind::kInvalidArgument, "", "ids",
                   str("ids of tokens, below ", vocab_size()), str(id)};
    }
    if (!skip_special || !entry->special) bytes += entry->bytes;
  }
  return bytes;
}

int64_t Tokenizer::vocab_size() const {
  return state_->bytes.end_of_ids();
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const auto added = state_->added.id(token);
  return added ? added : state_->bpe.vocabulary().id(token);
}

bool Tokenizer::is_special(int32_t id) const {
  const TokenBytes::Entry* entry = state_->bytes.find(id);
  return entry && entry->special;
}

}  // namespace moracle

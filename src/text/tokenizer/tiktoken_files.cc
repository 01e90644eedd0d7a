#include "text/tokenizer/tiktoken_files.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/base64.h"
#include "base/json/json_file.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

using Json = nlohmann::json;

/// Returns an entry of "added_tokens" in tokenizer.json's format.
Json added_token(int64_t id, std::string content, bool special) {
  return {
      {"id", id},        {"content", std::move(content)}, {"special", special}, {"lstrip", false},
      {"rstrip", false}, {"single_word", false},          {"normalized", false}};
}

/// Builds a byte-based tokenizer without a normalizer.
Result<TokenizerParts> assemble(Vocabulary vocabulary, const std::string& pattern,
                                const Json& added_tokens, const std::string& file) {
  const Json none, split = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  MORACLE_TRY(Normalizer normalizer, Normalizer::parse(JsonField(none, file)));
  MORACLE_TRY(Pretokenizer pretokenizer, Pretokenizer::parse(JsonField(split, file)));
  auto model = RankedBpe::of_bytes(std::move(vocabulary));
  if (!model) {
    Error error = std::move(model).error();
    error.file = file;
    return error;
  }
  const JsonField field(added_tokens, file, "special tokens");
  MORACLE_TRY(AddedTokens added, AddedTokens::parse(field, model->vocabulary(), normalizer));
  MORACLE_TRY(TokenTable tokens, TokenTable::make(model->vocabulary(), added, field));
  return TokenizerParts{std::move(normalizer),
                        std::move(pretokenizer),
                        *std::move(model),
                        std::move(added),
                        std::move(tokens),
                        Decoder(),
                        {}};
}

/// Default special tokens, for files that list none.
constexpr const char* kFirstTekkenTokens[] = {"<unk>",
                                              "<s>",
                                              "</s>",
                                              "[INST]",
                                              "[/INST]",
                                              "[AVAILABLE_TOOLS]",
                                              "[/AVAILABLE_TOOLS]",
                                              "[TOOL_RESULTS]",
                                              "[/TOOL_RESULTS]",
                                              "[TOOL_CALLS]",
                                              "[IMG]",
                                              "<pad>",
                                              "[IMG_BREAK]",
                                              "[IMG_END]",
                                              "[PREFIX]",
                                              "[MIDDLE]",
                                              "[SUFFIX]",
                                              "[SYSTEM_PROMPT]",
                                              "[/SYSTEM_PROMPT]",
                                              "[TOOL_CONTENT]"};

/// Names of the special tokens 0 to `count` - 1. An unlisted id is named by its number.
Result<std::vector<std::string>> tekken_names(const JsonField& field, int64_t count) {
  std::vector<std::string> names(static_cast<size_t>(count));
  for (int64_t id = 0; id < count; ++id) names[id] = str("<SPECIAL_", id, ">");
  if (field.is_null()) {
    for (size_t id = 0; id < std::size(kFirstTekkenTokens) && id < names.size(); ++id)
      names[id] = kFirstTekkenTokens[id];
    return names;
  }
  MORACLE_TRY(const auto items, field.items());
  for (const JsonField& item : items) {
    MORACLE_TRY(const int64_t id, item["rank"].integer(0, count - 1));
    MORACLE_TRY(names[id], item["token_str"].text());
  }
  return names;
}

}  // namespace

Result<TokenizerParts> read_tekken(const std::string& path) {
  MORACLE_TRY(const Json json, read_json_file(path));
  const JsonField root(json, path), config = root["config"];
  MORACLE_TRY(const std::string pattern, config["pattern"].text());
  MORACLE_TRY(const int64_t size, config["default_vocab_size"].integer(0, kLargestTokenId));
  MORACLE_TRY(const int64_t special, config["default_num_special_tokens"].integer(0, size));
  MORACLE_TRY(const std::vector<std::string> names, tekken_names(root["special_tokens"], special));
  Vocabulary vocabulary;
  const JsonField vocab = root["vocab"];
  const Json& tokens = vocab.value();
  if (!tokens.is_array() || static_cast<int64_t>(tokens.size()) < size - special)
    return vocab.bad(str("an array of at least ", size - special, " tokens"));
  for (int64_t rank = 0; rank < size - special; ++rank) {
    const JsonField entry(tokens[static_cast<size_t>(rank)], path);
    const auto place = [&] { return JsonField(entry.value(), path, str("vocab[", rank, "]")); };
    if (entry["rank"].value() != rank) return place().bad(str("the rank ", rank));
    const JsonField token_bytes = entry["token_bytes"];
    const Json& text = token_bytes.value();
    auto bytes =
        text.is_string() ? decode_base64(text.get_ref<const std::string&>()) : std::nullopt;
    if (!bytes || bytes->empty()) return place().bad("token_bytes in base 64");
    if (vocabulary.id(*bytes)) return place().bad("bytes that no other token has");
    vocabulary.add(*bytes, static_cast<int32_t>(rank + special));
  }
  Json added = Json::array();
  PostProcessor post_processor;
  for (int64_t id = 0; id < special; ++id) {
    const std::string& name = names[static_cast<size_t>(id)];
    if (name == "<s>") post_processor.before = {static_cast<int32_t>(id)};
    vocabulary.add(name, static_cast<int32_t>(id));
    added.push_back(added_token(id, name, true));
  }
  MORACLE_TRY(TokenizerParts parts, assemble(std::move(vocabulary), pattern, added, path));
  parts.post_processor = std::move(post_processor);
  return parts;
}

namespace {

/// Special token ids follow the file's tokens. Ids that the config does not name are reserved.
constexpr int64_t kKimiSpecialTokens = 258;

Result<Vocabulary> read_ranks(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  Vocabulary vocabulary;
  int64_t rank = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    const auto bytes = decode_base64(line.substr(0, space));
    if (space == line.npos || !bytes || bytes->empty() ||
        line.substr(space + 1) != std::to_string(rank) || vocabulary.id(*bytes) ||
        rank == kLargestTokenId - kKimiSpecialTokens) {
      return Error{ErrorKind::kBadFile, path, str("line ", rank + 1),
                   str("a new token in base 64, a space and the rank ", rank),
                   "the line does not match"};
    }
    vocabulary.add(*bytes, static_cast<int32_t>(rank++));
  }
  return vocabulary;
}

}  // namespace

Result<TokenizerParts> read_tiktoken(const std::string& path, const std::string& config) {
  MORACLE_TRY(const Json json, read_json_file(config));
  const JsonField root(json, config), names = root["added_tokens_decoder"];
  if (root["tokenizer_class"].value() != "TikTokenTokenizer") {
    return root["tokenizer_class"].unsupported(
        "TikTokenTokenizer beside a tiktoken.model, because only its pre-tokenizer is known");
  }
  MORACLE_TRY(Vocabulary vocabulary, read_ranks(path));
  Json added = Json::array();
  const auto first = static_cast<int64_t>(vocabulary.size());
  for (int64_t id = first; id < first + kKimiSpecialTokens; ++id) {
    const JsonField entry = names[str(id)];
    if (entry.is_null()) {
      added.push_back(added_token(id, str("<|reserved_token_", id, "|>"), true));
      continue;
    }
    MORACLE_TRY(std::string content, entry["content"].text());
    MORACLE_TRY(const bool special, entry["special"].flag_or(false));
    added.push_back(added_token(id, std::move(content), special));
  }
  return assemble(std::move(vocabulary), kKimiWords, added, path);
}

}  // namespace moracle

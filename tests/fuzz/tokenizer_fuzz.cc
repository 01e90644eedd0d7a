// libFuzzer: the first byte chooses whether the rest is a tokenizer.json, a value in the metadata
// of a GGUF file, or a text for a fixed tokenizer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json/json_text.h"
#include "text/gguf/gguf_text.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"

namespace moracle::testing::tokenizer_fuzz {

namespace {

using nlohmann::json;

/// A tokenizer with all bytes, some merges, an added token and a published expression.
Tokenizer make_tokenizer() {
  json vocab = json::object();
  const auto add = [&](const std::string& token) {
    const auto id = vocab.size();
    vocab[token] = id;
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    moracle::append_byte_level(std::string(1, static_cast<char>(byte)), token);
    add(token);
  }
  for (const char* token : {"aa", "aaaa", "ab", "aab", "\u0120\u0120"}) add(token);
  const json merges = {"a a", "aa aa", "a b", "aa b", "a ab", "\u0120 \u0120"};
  const json token = {{"id", vocab.size()}, {"content", "<s>"}, {"single_word", false},
                      {"lstrip", false},    {"rstrip", false},  {"normalized", false},
                      {"special", true}};
  const char* pattern =
      R"((?i:'s|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+)";
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json file = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"added_tokens", {token}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  auto tokenizer = moracle::parse_tokenizer(file.dump(), "fuzz");
  if (!tokenizer) std::abort();
  return *std::move(tokenizer);
}

/// Metadata of a GGUF file. "llama" has scores and byte tokens, the other models have merges.
json make_metadata(const char* model) {
  json tokens = {"<unk>", "<s>", "</s>", "<w>"}, types = {2, 3, 3, 4}, scores = {0, 0, 0, 0};
  const auto add = [&](const std::string& token) {
    tokens.push_back(token);
    types.push_back(1);
    scores.push_back(-1.5 * static_cast<double>(tokens.size()));
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    moracle::append_byte_level(std::string(1, static_cast<char>(byte)), token);
    add(token);
  }
  for (const char* token : {"aa", "aaaa", "ab", "aab", "\u2581"}) add(token);
  const json values = {{"model", model},          {"pre", "llama-bpe"},
                       {"tokens", tokens},        {"token_type", types},
                       {"scores", scores},        {"merges", {"a a", "aa aa", "a b", "aa b"}},
                       {"bos_token_id", 1},       {"eos_token_id", 2},
                       {"eot_token_id", 2},       {"unknown_token_id", 0},
                       {"add_bos_token", true},   {"add_eos_token", true},
                       {"add_space_prefix", true}};
  json metadata = {{"general.name", "phi3"},
                   {"tokenizer.chat_template", "{{ bos_token }}"},
                   {"tokenizer.chat_template.tool_use", "tools"}};
  for (const auto& [key, value] : values.items()) metadata["tokenizer.ggml." + key] = value;
  return metadata;
}

void require(bool holds) {
  if (!holds) std::abort();
}

/// Encoding then decoding returns the text, whole and in pieces.
void go_round(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (!ids) return;
  const auto decoded = tokenizer.decode(*ids);
  require(decoded && *decoded == text);
  TokenStream stream(tokenizer);
  std::string streamed;
  for (const int32_t id : *ids) {
    const auto piece = stream.push(id, false);
    require(piece.ok());
    streamed += *piece;
  }
  require(streamed == text && stream.finish().empty());
}

/// Decodes the bytes as ids: the stream returns only valid text.
void stream_bytes(const Tokenizer& tokenizer, std::string_view bytes) {
  TokenStream stream(tokenizer);
  std::string text;
  for (const char byte : bytes) text += *stream.push(static_cast<uint8_t>(byte));
  text += stream.finish();
  require(tokenizer.encode(text).ok());
}

/// Replaces one value, or one element of an array, by the bytes as JSON or as a string.
void change_metadata(std::string_view bytes) {
  static const json files[] = {make_metadata("gpt2"), make_metadata("llama"),
                               make_metadata("gemma4")};
  if (bytes.size() < 3) return;
  const auto number = [&](size_t at) {
    return static_cast<size_t>(static_cast<uint8_t>(bytes[at]));
  };
  json metadata = files[number(0) % std::size(files)];
  auto field = metadata.begin();
  std::advance(field, static_cast<std::ptrdiff_t>(number(1) % metadata.size()));
  const size_t element = number(2);
  bytes.remove_prefix(3);
  const auto parsed = moracle::parse_json(bytes, "fuzz");
  const json value = parsed ? *parsed : json(std::string(bytes));
  if (field->is_array() && element < field->size())
    (*field)[element] = value;
  else
    *field = value;
  (void)moracle::read_gguf_chat(metadata, "fuzz");
  auto parts = moracle::read_gguf_tokenizer(metadata, "fuzz");
  if (!parts) return;
  const Tokenizer tokenizer = moracle::make_tokenizer(*std::move(parts));
  const auto ids = tokenizer.encode_prompt("It's  12 \u00e9\u0301 aaaab<w> <s>\n");
  require(ids.ok() && tokenizer.decode(*ids).ok());
  for (const int32_t id : tokenizer.end_ids()) require(id >= 0 && id < tokenizer.vocab_size());
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 2) {
    change_metadata(rest);
    return 0;
  }
  if (data[0] % 2 == 0) {
    if (const auto parsed = moracle::parse_tokenizer(rest, "fuzz")) {
      (void)parsed->encode("It's  12 \u00e9\u0301 <s>\n");
    }
    return 0;
  }
  go_round(tokenizer, rest);
  stream_bytes(tokenizer, rest);
  return 0;
}

}  // namespace moracle::testing::tokenizer_fuzz

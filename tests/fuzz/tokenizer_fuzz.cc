// libFuzzer: the first byte chooses whether the rest is a tokenizer.json, or a text for a fixed
// tokenizer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/parse.h"

namespace {

using nlohmann::json;

/// A tokenizer with all bytes, some merges, an added token and a published expression.
moracle::Tokenizer make_tokenizer() {
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

void require(bool holds) {
  if (!holds) std::abort();
}

/// Encoding then decoding returns the text, whole and in pieces.
void go_round(const moracle::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (!ids) return;
  const auto decoded = tokenizer.decode(*ids);
  require(decoded && *decoded == text);
  moracle::TokenStream stream(tokenizer);
  std::string streamed;
  for (const int32_t id : *ids) {
    const auto piece = stream.push(id, false);
    require(piece.ok());
    streamed += *piece;
  }
  require(streamed == text && stream.finish().empty());
}

/// Decodes the bytes as ids: the stream returns only valid text.
void stream_bytes(const moracle::Tokenizer& tokenizer, std::string_view bytes) {
  moracle::TokenStream stream(tokenizer);
  std::string text;
  for (const char byte : bytes) text += *stream.push(static_cast<uint8_t>(byte));
  text += stream.finish();
  require(tokenizer.encode(text).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moracle::Tokenizer tokenizer = make_tokenizer();
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
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

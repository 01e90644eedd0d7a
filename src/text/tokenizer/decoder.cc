#include "text/tokenizer/decoder.h"

#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/model/byte_fallback.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"
#include "text/tokenizer/pre_tokenizer/metaspace.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr int kMaxDecoders = 8;
constexpr size_t kLongestReplacement = 16;
constexpr const char* kKnownDecoders =
    "ByteLevel, ByteFallback, Replace, Fuse, Metaspace, Strip or Sequence";

}  // namespace

Result<Decoder> Decoder::parse(const JsonField& field) {
  if (field.is_null()) return field.unsupported(kKnownDecoders);
  Decoder decoder;
  MORACLE_CHECK(decoder.add(field, 0));
  return decoder;
}

Status Decoder::add(const JsonField& field, int depth) {
  MORACLE_TRY(const std::string type, field["type"].text());
  if (type == "Sequence" && depth < kMaxDecoders) {
    MORACLE_TRY(const auto items, field["decoders"].items());
    for (const JsonField& item : items) MORACLE_CHECK(add(item, depth + 1));
    return {};
  }
  if (type == "Fuse") {
    fused_ = true;
    return {};
  }
  if (type == "Replace") return add_replace(field);
  if (type == "Strip") return add_strip(field);
  if (fused_) return field["type"].unsupported("Replace or Strip after Fuse or ByteLevel");
  if (type == "ByteLevel") {
    fused_ = true;
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Metaspace") {
    MORACLE_TRY(const MetaspaceOptions options, MetaspaceOptions::parse(field));
    steps_.emplace_back(
        Metaspace{options.mark, options.prepend != MetaspaceOptions::Prepend::kNever});
  } else {
    return field["type"].unsupported(kKnownDecoders);
  }
  return {};
}

Status Decoder::add_replace(const JsonField& field) {
  const JsonField pattern = field["pattern"];
  if (!pattern.contains("String")) return pattern.unsupported("a String");
  MORACLE_TRY(std::string from, pattern["String"].text());
  MORACLE_TRY(std::string to, field["content"].text());
  if (from.empty()) return pattern["String"].bad("a non-empty string");
  // Bound memory: each Replace may insert into the result of the one before.
  if (to.size() > kLongestReplacement)
    return field["content"].unsupported(str("at most ", kLongestReplacement, " bytes"));
  if (steps_.size() == kMaxDecoders) return field["type"].unsupported("fewer steps");
  // Only single characters: a longer pattern could span two tokens, which are decoded one by one.
  if (fused_ && first_char(from).length != from.size())
    return pattern["String"].unsupported("one character after Fuse or ByteLevel");
  steps_.emplace_back(Replace{std::move(from), std::move(to)});
  return {};
}

Status Decoder::add_strip(const JsonField& field) {
  MORACLE_TRY(std::string character, field["content"].text());
  MORACLE_TRY(const int64_t count, field["start"].integer(0, 1 << 20));
  MORACLE_TRY(const int64_t stop, field["stop"].integer(0, 1 << 20));
  if (character.empty() || first_char(character).length != character.size())
    return field["content"].bad("one character");
  if (!fused_) return field["type"].unsupported("Strip after Fuse or ByteLevel");
  if (stop != 0) return field["stop"].unsupported("0");
  steps_.emplace_back(StripStart{std::move(character), strips_.size()});
  strips_.push_back(count);
  return {};
}

void Decoder::append(const TokenText& token, DecodeState& state, std::string& out) const {
  std::string piece = token.text;
  for (const auto& one : steps_) {
    piece = std::visit([&](const auto& s) { return step(s, std::move(piece), state); }, one);
  }
  state.first = false;
  out += piece;
}

std::string Decoder::step(const ByteLevel&, std::string piece, DecodeState&) {
  return bytes_of_token(piece);
}

std::string Decoder::step(const ByteFallback&, std::string piece, DecodeState&) {
  const auto byte = byte_of_token(piece);
  return byte ? std::string(1, static_cast<char>(*byte)) : piece;
}

std::string Decoder::step(const Replace& step, std::string piece, DecodeState&) {
  return replaced(piece, step.from, step.to);
}

std::string Decoder::step(const Metaspace& step, std::string piece, DecodeState& state) {
  return replaced(piece, step.mark, state.first && step.drops_first ? "" : " ");
}

std::string Decoder::step(const StripStart& step, std::string piece, DecodeState& state) {
  int64_t& left = state.strips[step.index];
  size_t begin = 0;
  while (left > 0 && begin < piece.size()) {
    if (piece.compare(begin, step.character.size(), step.character) != 0) {
      left = 0;
    } else {
      begin += step.character.size();
      --left;
    }
  }
  return piece.substr(begin);
}

}  // namespace moracle

#include "serve/tools/tool_reader.h"

#include <random>

#include "serve/tools/call_parts.h"

namespace moracle::serve {
namespace {

// Nine letters and digits: the form that Mistral's templates demand.
std::string new_call_id() {
  static thread_local std::mt19937_64 random(std::random_device{}());
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::uniform_int_distribution<size_t> digit(0, kDigits.size() - 1);
  std::string id;
  while (id.size() < 9) id += kDigits[digit(random)];
  return id;
}

// The number of bytes at the end of `text` that may begin `mark`.
size_t open_end(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (text.ends_with(mark.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

void ToolReader::add_text(std::string_view text, Piece& piece) {
  if (text.empty()) return;
  const std::string_view shown = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  if (!shown.empty()) {
    piece.text += space_;
    piece.text += shown;
    space_.clear();
  }
  space_ += text.substr(shown.size());
}

void ToolReader::take_block(std::string_view block, std::string_view raw, Piece& piece) {
  auto calls = format_.parse(block, tools_);
  if (!calls) return add_text(raw, piece);
  space_.clear();
  has_calls_ = true;
  for (ToolCall& call : *calls) {
    if (call.id.empty()) call.id = new_call_id();
    piece.calls.push_back(std::move(call));
  }
}

// Shows the text before the next block. False: more text is needed.
bool ToolReader::read_text(Piece& piece) {
  if (format_.open.empty()) {
    const std::string_view begin = trimmed(held_);
    if (!has_begun_ && begin.empty()) return false;
    in_block_ = !has_begun_ && begin[0] == '{';
    has_begun_ = true;
    if (in_block_) return true;
    add_text(held_, piece);
    held_.clear();
    return false;
  }
  const size_t at = held_.find(format_.open);
  in_block_ = at != std::string::npos;
  const size_t shown = in_block_ ? at : held_.size() - open_end(held_, format_.open);
  add_text(std::string_view(held_).substr(0, shown), piece);
  held_.erase(0, shown);
  searched_ = format_.open.size();
  return in_block_;
}

// `held_` begins with the block's mark. False: the block's end is missing.
bool ToolReader::read_block(Piece& piece) {
  if (format_.close.empty()) return false;
  const size_t begin = format_.open.size();
  const size_t end = held_.find(format_.close, searched_);
  if (end == std::string::npos) {
    const size_t may_begin = std::min(held_.size(), format_.close.size() - 1);
    searched_ = std::max(begin, held_.size() - may_begin);
    return false;
  }
  const std::string_view whole = std::string_view(held_).substr(0, end + format_.close.size());
  take_block(whole.substr(begin, end - begin), whole, piece);
  held_.erase(0, whole.size());
  in_block_ = false;
  return true;
}

ToolReader::Piece ToolReader::push(std::string_view text) {
  Piece piece;
  held_ += text;
  while (in_block_ ? read_block(piece) : read_text(piece)) {
  }
  return piece;
}

ToolReader::Piece ToolReader::finish(bool is_whole) {
  Piece piece = push({});
  if (in_block_ && is_whole)
    take_block(std::string_view(held_).substr(format_.open.size()), held_, piece);
  else
    add_text(held_, piece);
  if (!has_calls_) piece.text += space_;
  held_.clear();
  space_.clear();
  return piece;
}

}  // namespace moracle::serve

#include "serve/tools/channel_parser.h"

#include <algorithm>

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kMessage = "<|message|>", kFunctions = "functions.";
constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};

// The word after `key` in a header.
std::string_view word_after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, std::min(rest.find_first_of(" \n<"), rest.size()));
}

}  // namespace

void ChannelParser::begin(std::string_view header, std::vector<AnswerPiece>& pieces) {
  using Kind = AnswerPart::Kind;
  const std::string_view recipient = word_after(header, "to=");
  const Kind before = kind_;
  std::string name;
  if (recipient.starts_with(kFunctions)) name = recipient.substr(kFunctions.size());
  kind_ = tools_ && tools_->has(name)                       ? Kind::kCall
          : word_after(header, "<|channel|>") == "analysis" ? Kind::kReasoning
                                                            : Kind::kText;
  in_body_ = true;
  begins_ = begins_ || kind_ != before || kind_ == Kind::kCall;
  if (kind_ != Kind::kCall) return;
  has_calls_ = true;
  begins_ = false;
  pieces.push_back({.kind = kind_, .id = new_call_id(), .name = name, .begins = true});
}

void ChannelParser::add(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  pieces.push_back({.kind = kind_, .text = std::string(text), .begins = begins_});
  begins_ = false;
}

// Reads up to the end of a header. False: more text is needed.
bool ChannelParser::read_header(std::vector<AnswerPiece>& pieces) {
  const size_t at = held_.find(kMessage, searched_);
  if (at == std::string::npos) {
    // The tag may be split, so search its start again.
    searched_ = held_.size() - std::min(held_.size(), kMessage.size() - 1);
    return false;
  }
  searched_ = 0;
  begin(std::string_view(held_).substr(0, at), pieces);
  held_.erase(0, at + kMessage.size());
  return true;
}

// Emits the text of a message. False: more text is needed.
bool ChannelParser::read_body(std::vector<AnswerPiece>& pieces) {
  size_t end = std::string::npos, size = 0, shown = held_.size();
  for (const std::string_view tag : kEnds) {
    const size_t at = held_.find(tag);
    if (at < end) {
      end = at;
      size = tag.size();
    }
    shown = std::min(shown, held_.size() - open_end(held_, tag));
  }
  in_body_ = end == std::string::npos;
  add(std::string_view(held_).substr(0, in_body_ ? shown : end), pieces);
  held_.erase(0, in_body_ ? shown : end + size);
  return !in_body_;
}

std::vector<AnswerPiece> ChannelParser::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (held_.empty() && !in_body_ && text.empty()) return pieces;
  held_ += text;
  while (in_body_ ? read_body(pieces) : read_header(pieces)) {
  }
  return pieces;
}

std::vector<AnswerPiece> ChannelParser::finish() {
  std::vector<AnswerPiece> pieces;
  // A text without any header is the answer of a model that ignores the format.
  if (in_body_ || held_.find("<|") == std::string::npos) add(held_, pieces);
  held_.clear();
  return pieces;
}

}  // namespace moracle::serve
